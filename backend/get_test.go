package backend

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"rallypoint/internal/testkit"
)

// TestAnswerWithoutEnd: of a server that sends for ever no more is read than a status may have,
// whichever part of the answer never ends.
func TestAnswerWithoutEnd(t *testing.T) {
	for name, head := range map[string]string{
		"one chunk":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3ffffffff\r\n",
		"no headers": "HTTP/1.1 200 OK\r\nX: ",
	} {
		t.Run(name, func(t *testing.T) {
			l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
			var sent int
			var sending sync.WaitGroup
			sending.Go(func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				_, err = fmt.Fprint(conn, head)
				for more := []byte(strings.Repeat("x", 1<<20)); err == nil; {
					var n int
					n, err = conn.Write(more)
					sent += n
				}
			})
			_, _, body, err := Get(testkit.Within(t, testkit.Patience), l.Addr().String(), nil, "/status", "")
			l.Close()
			sending.Wait()
			if err == nil || !strings.Contains(err.Error(), "is longer than 64 MiB") || len(body) > 0 || sent > 2*maxPage { // the kernel takes some more
				t.Errorf("%d bytes were sent, %d taken: %v", sent, len(body), err)
			}
		})
	}
}
