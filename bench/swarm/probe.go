package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"time"
)

// spread is what one kind of operation took, in seconds.
type spread struct {
	Count  int     `json:"count"`
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
	Max    float64 `json:"max"`
}

func spreadOf(took []time.Duration) spread {
	if len(took) == 0 {
		return spread{}
	}
	slices.Sort(took)
	at := func(i int) float64 { return took[i].Seconds() }
	return spread{len(took), at(len(took) / 2), at(len(took) * 99 / 100), at(len(took) - 1)}
}

// probe is one good client, which does one thing after the other. Each line of the
// input is a number of seconds to do so for, and is answered by what it took.
func probe(addr string) error {
	ctx := context.Background()
	s, err := form(ctx, addr, 1, runOf("probe", 1))
	if err != nil {
		return err
	}
	defer s.leave()
	runs := 0
	operations := []struct {
		name string
		do   func() (time.Duration, error)
	}{
		{"add", func() (time.Duration, error) {
			began := time.Now()
			err := repeat(ctx, s[0], 1, addition("sum"))
			return time.Since(began), err
		}},
		{"healthz", func() (time.Duration, error) { return health(addr) }},
		{"meet", func() (time.Duration, error) {
			runs++
			return pair(ctx, addr, fmt.Sprint("pair-", runs))
		}},
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		seconds, err := strconv.ParseFloat(in.Text(), 64)
		if err != nil {
			return err
		}
		all := map[string]spread{}
		for _, operation := range operations {
			var took []time.Duration
			for end := time.Now().Add(time.Duration(seconds * float64(time.Second))); time.Now().Before(end); {
				one, err := operation.do()
				if err != nil {
					return fmt.Errorf("%s: %w", operation.name, err)
				}
				took = append(took, one)
			}
			all[operation.name] = spreadOf(took)
		}
		if err := json.NewEncoder(os.Stdout).Encode(all); err != nil {
			return err
		}
	}
	return nil
}

// health asks whether the control plane lives, on a connection of its own.
func health(addr string) (time.Duration, error) {
	began := time.Now()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return 0, err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && string(answer[:min(len(answer), 15)]) != "HTTP/1.1 200 OK" {
		err = fmt.Errorf("the answer is %q", answer)
	}
	return time.Since(began), err
}

// pair is a run of two nodes: first connection to last outcome.
func pair(ctx context.Context, addr, what string) (time.Duration, error) {
	began := time.Now()
	s, err := form(ctx, addr, 2, runOf(what, 2))
	if err != nil {
		return 0, err
	}
	defer s.leave()
	return time.Since(began), nil
}
