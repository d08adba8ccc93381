package filestore_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"rallypoint/filestore"
)

// Two processes of a job of two, here in one, count by a file that both can open.
// torch.distributed.FileStore works with the same file.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	for range 2 {
		s, err := filestore.Open(ctx, filepath.Join(dir, "store"), 2, nil)
		if err != nil {
			log.Fatal(err)
		}
		defer s.Close()
		n, err := s.Add(ctx, "arrived", 1)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(n)
	}
	// Output:
	// 1
	// 2
}
