package roundstore_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net"
	"time"

	"rallypoint/core/control"
	"rallypoint/core/params"
	"rallypoint/core/store"
	"rallypoint/roundstore"
	"rallypoint/tcpstore"
)

// A node joins a round on a control plane, and a worker of it uses the round's store.
func ExampleOpen() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	server := control.Start(control.Config{Log: quiet}, listener) // rallypoint serve
	defer server.Close()

	p := params.Default()
	p.RunID, p.Min, p.Max = "job", 1, 1
	if p.Servers, err = params.ParseServers(listener.Addr().String(), params.DefaultPort); err != nil {
		log.Fatal(err)
	}
	node, err := roundstore.Open(p, quiet)
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	outcome, err := node.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("round %d: rank %d of %d\n", outcome.Round, outcome.Rank, outcome.World)

	var worker store.Store
	worker, err = tcpstore.Dial(ctx, net.JoinHostPort(outcome.StoreAddr, fmt.Sprint(outcome.StorePort)), tcpstore.ClientOptions{Logger: quiet})
	if err != nil {
		log.Fatal(err)
	}
	defer worker.Close()
	arrived, err := worker.Add(ctx, "arrived", 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("arrived:", arrived)
	// Output:
	// round 1: rank 0 of 1
	// arrived: 1
}
