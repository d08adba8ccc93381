// Command node is one node of a job, in Go over the project's own packages: it joins,
// meets the others at the store of the round, works, and regroups when a node is lost.
//
//	go run ./examples/go host0:29400 job7 2 3     # endpoint, run id, fewest, most nodes
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/roundstore"
	"rallypoint/tcpstore"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: node ENDPOINT RUN_ID MIN MAX")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "node:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	p := params.Default()
	p.RunID = args[1]
	var err error
	if p.Servers, err = params.ParseServers(args[0], params.DefaultPort); err != nil {
		return err
	}
	if p.Min, err = strconv.Atoi(args[2]); err != nil {
		return err
	}
	if p.Max, err = strconv.Atoi(args[3]); err != nil {
		return err
	}
	member, err := roundstore.Open(p, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	defer member.Close()
	for {
		place, err := member.Next(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("round %d: rank %d of %d\n", place.Round, place.Rank, place.World)
		done, err := work(ctx, member, place)
		if err != nil {
			return err
		}
		if done {
			break
		}
		fmt.Println("regrouping:", member.Reason())
	}
	if err := member.Finish(ctx); err != nil {
		return err
	}
	fmt.Println("done")
	return member.Shutdown(ctx, rendezvous.EndSuccess, "the work is done")
}

// work works in one round. It is done once the nodes of a round of two have met, so
// that this example has something to lose a node for.
func work(ctx context.Context, member *member.Member, place rendezvous.Outcome) (done bool, err error) {
	if place.World > 2 {
		for member.NodesWaiting() == 0 {
			select {
			case <-member.Changed():
			case <-ctx.Done():
				return false, ctx.Err()
			}
		}
		return false, nil
	}
	limited, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	address := net.JoinHostPort(place.StoreAddr, strconv.Itoa(place.StorePort))
	store, err := tcpstore.Dial(limited, address, tcpstore.ClientOptions{})
	if err != nil {
		return false, err
	}
	defer store.Close()
	return true, store.Barrier(limited, "met", int64(place.World))
}
