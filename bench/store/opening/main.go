// Command opening opens connections to a round store one after the other, both ends in this
// process, over TLS with the token of a file and plain, by turns. It prints the milliseconds
// of CPU of one by TLS and a plain one, the least of many batches each: what other programs on
// the machine add is no cost of an opening.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math"
	"net"
	"syscall"
	"time"

	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/tcpstore"
	"rallypoint/tcpstore/forward"
)

const (
	batches = 20
	each    = 100 // more than a garbage collection
)

var name = secret.StoreName{Run: "bench", Round: 1}

func main() {
	path := flag.String("token", "", "the file of a token")
	flag.Parse()
	token, err := secret.OpenToken(*path, nil)
	if err != nil {
		log.Fatal(err)
	}
	config, err := secret.ServerTLS()
	if err != nil {
		log.Fatal(err)
	}
	secured := serve(tcpstore.Options{Secure: &tcpstore.Secure{Token: token, Config: config}})
	plain := serve(tcpstore.Options{})
	least := [2]time.Duration{math.MaxInt64, math.MaxInt64}
	for range batches {
		least[0] = min(least[0], batch(secured, token))
		least[1] = min(least[1], batch(plain, nil))
	}
	fmt.Println(1e3*least[0].Seconds(), 1e3*least[1].Seconds())
}

func serve(opts tcpstore.Options) *tcpstore.Server {
	s, err := tcpstore.Listen("127.0.0.1:0", store.NewEngine(store.Limits{}), opts)
	if err != nil {
		log.Fatal(err)
	}
	s.BeginRound(nil, name)
	return s
}

// batch returns the CPU time of one opening.
func batch(s *tcpstore.Server, token *secret.Token) time.Duration {
	before := used()
	for range each {
		if err := open(s.Addr().String(), token); err != nil {
			log.Fatal(err)
		}
	}
	return (used() - before) / each
}

// open opens a connection and closes it.
func open(addr string, token *secret.Token) error {
	conn, err := forward.Dialer().DialContext(context.Background(), "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	var secured net.Conn = conn
	if token != nil {
		if secured, err = secret.DialStore(context.Background(), conn, token, name, secret.PurposeStore); err != nil {
			return err
		}
	}
	if _, err := secured.Write([]byte("\x00\xce\xf7\x85\x3c\x0dping")); err != nil { // is it served?
		return err
	}
	_, err = secured.Read(make([]byte, 4))
	return err
}

// used is the CPU time of this process.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		log.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
