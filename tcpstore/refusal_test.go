package tcpstore

import (
	"fmt"
	"strings"
	"testing"

	"rallypoint/internal/logsampler"
)

// TestManyRefusalsAreFewLines: the numbers count each connection that is refused,
// the log has few lines about them, and what these say adds up to the same.
func TestManyRefusalsAreFewLines(t *testing.T) {
	const tries = 50
	s, lines := newServer(t, Options{Loops: 2})
	for range tries {
		for _, bad := range []string{"GET / HTTP/1.1\r\n", string(hello) + "\xff"} {
			r := dialRaw(t, s)
			if _, err := r.Write([]byte(bad)); err != nil {
				t.Fatal(err)
			}
			r.expectClosed()
		}
	}
	s.Close()
	told, logged := map[string]int{}, map[string]int{}
	for _, line := range lines.All() {
		_, reason, _ := strings.Cut(line, " reason=")
		reason, _, _ = strings.Cut(strings.TrimSpace(reason), " ")
		count := 1
		if _, text, ok := strings.Cut(line, " count="); ok {
			if _, err := fmt.Sscan(text, &count); err != nil {
				t.Error(err)
			}
			if !strings.Contains(line, "last=127.0.0.1") || !strings.Contains(line, "listen="+s.Addr().String()) {
				t.Errorf("the line is %s", line)
			}
		}
		told[reason] += count
		logged[reason]++
	}
	for _, reason := range []Reason{reasonDialect, reasonOpcode} {
		name := reason.String()
		if s.Stats().Refused[name] != tries || told[name] != tries {
			t.Errorf("%s: %d are counted and %d told, want %d", name, s.Stats().Refused[name], told[name], tries)
		}
		// The machine may be so slow that this takes several windows.
		if logged[name] > tries/4 || logged[name] > 2 && logged[name] > logsampler.MaxAtOnce+1 {
			t.Errorf("%s: %d lines", name, logged[name])
		}
	}
}
