package backend_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"time"

	"rallypoint/backend"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
)

// Two nodes, here in one process, meet in a directory that both see. Another endpoint
// (host0:29400, etcd://host) changes nothing else.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	placed := make(chan rendezvous.Outcome)
	for rank := range 2 {
		p := params.Default()
		p.RunID, p.Endpoint, p.Min, p.Max = "job", "file://"+dir, 2, 2
		p.NodeRank = rank // a preference; -1 leaves the rank to the rendezvous
		node, err := backend.Open(p, slog.New(slog.DiscardHandler))
		if err != nil {
			log.Fatal(err)
		}
		defer node.Close()
		go func() {
			outcome, err := node.Next(ctx)
			if err != nil {
				log.Fatal(err)
			}
			placed <- outcome
		}()
	}
	outcomes := [2]rendezvous.Outcome{}
	for range outcomes {
		o := <-placed
		outcomes[o.Rank] = o
	}
	for _, o := range outcomes {
		fmt.Printf("round %d: rank %d of %d\n", o.Round, o.Rank, o.World)
	}
	// Output:
	// round 1: rank 0 of 2
	// round 1: rank 1 of 2
}

// What a user writes as an endpoint is checked, and its defaults are filled in, before anything is
// opened.
func ExamplePlace_Complete() {
	at, err := backend.At("host0")
	if err != nil {
		log.Fatal(err)
	}
	p := params.Default()
	err = at.Complete(&p)
	fmt.Println(p.Endpoint, err)
	// Output: host0:29400 <nil>
}
