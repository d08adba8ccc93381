package etcdstore_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"rallypoint/etcdstore"
)

// A store in an etcd that runs already: its keys are below the prefix, and vanish an
// hour after the store's last use.
func ExampleOpen() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := etcdstore.Open(ctx, etcdstore.Config{
		Endpoints: []string{"etcd0:2379", "etcd1:2379"},
		Prefix:    "/jobs/42/",
		TTL:       time.Hour,
	})
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
