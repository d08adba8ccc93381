package journal

import (
	"os"
	"strings"
	"sync"
	"testing"
)

// TestFaultOfTheFile cuts the mapped file off under a journal: it refuses from then on,
// closing waits for nothing, and the directory is free.
func TestFaultOfTheFile(t *testing.T) {
	for _, size := range []int64{0, 4096, 8192} {
		dir := t.TempDir()
		j := open(t, dir)
		write(t, j, WriteBatch{Run: 1, Snapshot: &Snapshot{ID: "one", State: make([]byte, 300_000)}, First: 1, Events: events(1, 300)})
		if err := os.Truncate(j.path, size); err != nil {
			t.Fatal(err)
		}
		var writers sync.WaitGroup
		for range 3 {
			writers.Go(func() {
				for range 3 {
					err := j.Write([]WriteBatch{{Run: 1, First: 301, Events: events(301, 301)}})
					if err == nil || !strings.Contains(err.Error(), j.path) || !strings.Contains(err.Error(), "--data-dir") {
						t.Errorf("%d bytes are left: %v", size, err)
					}
				}
			})
		}
		writers.Wait()
		if _, err := j.Runs(); err == nil {
			t.Errorf("%d bytes are left, and it is read", size)
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
		again, err := Open(dir, Options{})
		if err == nil {
			_, err = again.Runs()
			again.Close()
		}
		if err == nil || !strings.Contains(err.Error(), j.path) || strings.Contains(err.Error(), "in use") || strings.Contains(err.Error(), "timeout") {
			t.Errorf("%d bytes are left, opened again: %v", size, err)
		}
	}
}

// TestCutOffDuringAWrite cuts the file off while it is written, which makes it longer again:
// no write that begins after that is confirmed.
func TestCutOffDuringAWrite(t *testing.T) {
	for range 200 {
		j := open(t, t.TempDir())
		begun, stop, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
		next := uint64(1)
		go func() {
			defer close(ended)
			for ; ; next++ {
				if j.Write([]WriteBatch{{Run: 1, Snapshot: &Snapshot{ID: "one", State: []byte("state")}, First: next, Events: events(int(next), int(next))}}) != nil {
					return
				}
				if next == 3 {
					close(begun)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
		<-begun
		if err := os.Truncate(j.path, 0); err != nil {
			t.Fatal(err)
		}
		close(stop)
		<-ended
		if err := j.Write([]WriteBatch{{Run: 1, First: next + 1, Events: events(int(next)+1, int(next)+1)}}); err == nil {
			t.Error("a write into a file that was cut off is confirmed")
		}
		j.Close()
	}
}
