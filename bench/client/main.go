// Command client measures a client of a TCPStore server from Go: client ADDRESS prints a
// line for each operation, its name and what it took in microseconds.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"rallypoint/tcpstore"
)

const times = 2000

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		os.Exit(1)
	}
}

func run(address string) error {
	ctx := context.Background()
	c, err := tcpstore.Dial(ctx, address, tcpstore.ClientOptions{})
	if err != nil {
		return err
	}
	defer c.Close()
	value := []byte("0123456789abcdef")
	keys, values := make([]string, 10), make([][]byte, 10)
	for i := range keys {
		keys[i], values[i] = fmt.Sprint("k", i), value
	}
	if err := c.MultiSet(ctx, keys, values); err != nil {
		return err
	}
	for _, operation := range []struct {
		name string
		do   func() error
	}{
		{"get", func() error { _, err := c.Get(ctx, "k0"); return err }},
		{"multi_get", func() error { _, err := c.MultiGet(ctx, keys); return err }},
		{"set", func() error { return c.Set(ctx, "k0", value) }},
		{"add", func() error { _, err := c.Add(ctx, "n", 1); return err }},
		{"check", func() error { _, err := c.Check(ctx, keys[:1]); return err }},
		{"wait", func() error { return c.Wait(ctx, keys[:1]) }},
		{"compare_set", func() error { _, err := c.CompareSet(ctx, "k0", value, value); return err }},
	} {
		began := time.Now()
		for range times {
			if err := operation.do(); err != nil {
				return fmt.Errorf("%s: %w", operation.name, err)
			}
		}
		fmt.Println(operation.name, time.Since(began).Seconds()*1e6/times)
	}
	return nil
}
