// Command carrier listens on a free loopback port and carries each connection to a server of
// bench/store: over TLS with the token of a file, or, without one, as it is. It prints its
// port and ends when its input does.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"

	"rallypoint/core/secret"
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				log.Fatal(err)
			}
			go carry(near, "127.0.0.1:"+*server, token)
		}
	}()
	io.Copy(io.Discard, os.Stdin)
}

func carry(near net.Conn, server string, token *secret.Token) {
	defer near.Close()
	below, err := net.Dial("tcp", server)
	if err != nil {
		log.Print(err)
		return
	}
	defer below.Close()
	far := below
	if token != nil {
		secured, err := secret.DialStore(context.Background(), below, token, secret.StoreName{Run: "bench", Round: 1}, secret.PurposeStore)
		if err != nil {
			log.Print(err)
			return
		}
		far = secured
	}
	go func() {
		io.Copy(far, near)
		below.Close()
	}()
	io.CopyBuffer(near, far, make([]byte, 64<<10))
}
