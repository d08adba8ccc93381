// Command carrier is a node's forwarder (tcpstore/forward) in front of a server of
// bench/store: it listens on a free loopback port and carries each connection there, over TLS
// with the token of a file or, without one, as it is. It prints its port. Each line of its
// input has it give back the memory that it does not use, which it answers by a line of JSON;
// it ends with its input.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime/debug"

	"rallypoint/core/secret"
	"rallypoint/tcpstore/forward"
)

func main() {
	path := flag.String("token", "", "the file of the server's token")
	server := flag.String("server", "", "the server's port")
	flag.Parse()
	var token *secret.Token
	if *path != "" {
		t, err := secret.OpenToken(*path, nil)
		if err != nil {
			log.Fatal(err)
		}
		token = t
	}
	place := "127.0.0.1:" + *server
	f, err := forward.Listen(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0, forward.Options{
		Dial:  func(ctx context.Context, _ int) (forward.Conn, error) { return dial(ctx, place, token) },
		Store: place, Log: slog.Default(),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(f.Addr().Port())
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		debug.FreeOSMemory()
		fmt.Println("{}")
	}
	f.Close()
}

func dial(ctx context.Context, place string, token *secret.Token) (forward.Conn, error) {
	conn, err := forward.Dialer().DialContext(ctx, "tcp", place)
	if err != nil {
		return nil, err
	}
	if token == nil {
		return conn.(*net.TCPConn), nil
	}
	secured, err := secret.DialStore(ctx, conn, token, secret.StoreName{Run: "bench", Round: 1}, secret.PurposeStore)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return secured, nil
}
