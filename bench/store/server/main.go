// Command server serves an empty TCPStore on a free loopback port, for
// bench/store/run.py. It prints the port and ends when its input does.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"runtime"
	"runtime/pprof"

	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/tcpstore"
)

func main() {
	loops := flag.Int("loops", 0, "tcpstore.Options.Loops")
	token := flag.String("token", "", "the file of a token: speak TLS")
	profiles := flag.String("profiles", "", "write profiles to FILE.cpu and FILE.mutex at the end")
	flag.Parse()
	opts := tcpstore.Options{Loops: *loops, Logger: slog.New(slog.DiscardHandler)} // bad clients are part of a case
	if *token != "" {
		t, err := secret.OpenToken(*token, nil)
		if err != nil {
			log.Fatal(err)
		}
		config, err := secret.ServerTLS()
		if err != nil {
			log.Fatal(err)
		}
		opts.Secure = &tcpstore.Secure{Token: t, Config: config}
	}
	s, err := tcpstore.Listen("127.0.0.1:0", store.NewEngine(store.Limits{}), opts)
	if err != nil {
		log.Fatal(err)
	}
	s.BeginRound(nil, secret.StoreName{Run: "bench", Round: 1})
	fmt.Println(s.Addr().(*net.TCPAddr).Port)
	if *profiles != "" {
		defer profile(*profiles)()
	}
	io.Copy(io.Discard, os.Stdin)
	s.Close()
}

// profile starts a profile of the CPU time and of contended mutexes; end writes both.
func profile(path string) (end func()) {
	file := func(kind string) *os.File {
		f, err := os.Create(path + kind)
		if err != nil {
			log.Fatal(err)
		}
		return f
	}
	cpu := file(".cpu")
	runtime.SetMutexProfileFraction(100)
	if err := pprof.StartCPUProfile(cpu); err != nil {
		log.Fatal(err)
	}
	return func() {
		pprof.StopCPUProfile()
		mutex := file(".mutex")
		if err := pprof.Lookup("mutex").WriteTo(mutex, 0); err != nil {
			log.Fatal(err)
		}
		cpu.Close()
		mutex.Close()
	}
}
