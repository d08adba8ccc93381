// Command usercheck asks again and again whose a loopback connection is, and prints how many
// microseconds of CPU one check takes.
package main

import (
	"fmt"
	"log"
	"net"
	"syscall"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/peer"
)

const checks = 5000

func main() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		log.Fatal(err)
	}
	check := peer.NewLoopbackCheck(params.LoopbackUsers{})
	before := used()
	for range checks {
		if err := check.Admit(server); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(float64((used() - before).Nanoseconds()) / 1e3 / checks)
}

// used is the CPU time of this process.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		log.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
