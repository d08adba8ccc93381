package tcpstore_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"rallypoint/core/store"
	"rallypoint/tcpstore"
)

// A server on a free port, and a client of it. torch.distributed.TCPStore is a client
// of the same server.
func Example() {
	server, err := tcpstore.Listen("127.0.0.1:0", store.NewEngine(store.Limits{}), tcpstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := tcpstore.Dial(ctx, server.Addr().String(), tcpstore.ClientOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	if err := client.Set(ctx, "address", []byte("10.0.0.1:4711")); err != nil {
		log.Fatal(err)
	}
	address, err := client.Get(ctx, "address")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", address)
	// Output: 10.0.0.1:4711
}
