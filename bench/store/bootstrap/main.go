// Command bootstrap asks a TCPStore at a loopback port what the ranks of a job ask before they
// train with NCCL: each counts itself, passes two barriers, and gets four unique ids, which rank 0
// sets. It takes the port and the number of ranks. For each line of its input, which names a job
// that was not there before, all ranks connect and ask; it answers with a line of JSON.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Operations of torch's TCPStore; see docs/protocol.md.
const (
	opSet      = 1
	opGet      = 3
	opAdd      = 4
	opWait     = 6
	opValidate = 0
	opPing     = 13

	magic      = 0x3C85F7CE
	barriers   = 2
	uniqueIDs  = 4
	uniqueID   = 128 // bytes
	connecting = 256 // at a time
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("bootstrap PORT RANKS")
	}
	ranks, err := strconv.Atoi(os.Args[2])
	check(err)
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for i := 0; lines.Scan(); i++ {
		began := time.Now()
		job("127.0.0.1:"+os.Args[1], ranks, strings.TrimSpace(lines.Text()), byte(1+i%250))
		fmt.Printf(`{"seconds": %.3f}`+"\n", time.Since(began).Seconds())
	}
}

// job runs all ranks of one job. They connect from a network of their own, 4096 from an address: an
// address has 28 000 ports, and those of the job before may still be in TIME_WAIT.
func job(addr string, ranks int, name string, from byte) {
	room := make(chan struct{}, connecting)
	var all sync.WaitGroup
	for i := range ranks {
		all.Go(func() {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, from, byte(i>>12), 1)}}
			room <- struct{}{}
			conn, err := dialer.Dial("tcp", addr)
			<-room
			check(err)
			defer conn.Close()
			r := rank{conn, bufio.NewReaderSize(conn, 512)}
			r.ask(binary.LittleEndian.AppendUint32([]byte{opValidate}, magic), 0)
			r.ask([]byte{opPing, 1, 2, 3, 4}, 4)
			r.bootstrap(i, ranks, name)
		})
	}
	all.Wait()
}

type rank struct {
	conn net.Conn
	in   *bufio.Reader
}

func (r rank) bootstrap(i, ranks int, job string) {
	r.add(job + "/ranks")
	for b := range barriers {
		key := fmt.Sprintf("%s/barrier%d", job, b)
		if r.add(key) == uint64(ranks) {
			r.set(key+"/last", []byte("1"))
		}
		r.wait(key + "/last")
	}
	for id := range uniqueIDs {
		key := fmt.Sprintf("%s/id%d", job, id)
		if i == 0 {
			r.set(key, make([]byte, uniqueID))
		}
		r.wait(key)
		r.get(key)
	}
}

func (r rank) add(key string) uint64 {
	return binary.LittleEndian.Uint64(r.ask(binary.LittleEndian.AppendUint64(text([]byte{opAdd}, key), 1), 8))
}

func (r rank) set(key string, value []byte) {
	r.ask(text(text([]byte{opSet}, key), string(value)), 0)
}

func (r rank) wait(key string) {
	r.ask(text(binary.LittleEndian.AppendUint64([]byte{opWait}, 1), key), 1)
}

func (r rank) get(key string) {
	n := binary.LittleEndian.Uint64(r.ask(text([]byte{opGet}, key), 8))
	_, err := r.in.Discard(int(n))
	check(err)
}

// ask sends a request and returns so many bytes of its answer.
func (r rank) ask(request []byte, answer int) []byte {
	_, err := r.conn.Write(request)
	check(err)
	b := make([]byte, answer)
	_, err = io.ReadFull(r.in, b)
	check(err)
	return b
}

func text(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
