// Command server serves an empty TCPStore on a free loopback port, for
// bench/store/run.py. It prints the port and ends when its input does.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"

	"rallypoint/core/store"
	"rallypoint/tcpstore"
)

func main() {
	loops := flag.Int("loops", 0, "tcpstore.Options.Loops")
	flag.Parse()
	s, err := tcpstore.Listen("127.0.0.1:0", store.NewEngine(store.Limits{}), tcpstore.Options{Loops: *loops})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(s.Addr().(*net.TCPAddr).Port)
	io.Copy(io.Discard, os.Stdin)
	s.Close()
}
