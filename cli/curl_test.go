package cli

import (
	"io"
	"net/http"
	"regexp"
	"strconv"
	"testing"

	"rallypoint/backend"
	"rallypoint/core/params"
	"rallypoint/internal/testkit"
)

// TestCurlShowsTheStatus: what a node's port answers to curl is what `rallypoint status` prints,
// with the node called by its machine.
func TestCurlShowsTheStatus(t *testing.T) {
	p := params.Default()
	p.Endpoint, p.RunID, p.HostName, p.LocalAddr = "127.0.0.1:"+strconv.Itoa(testkit.FreePort(t)), "run", "gpu-a", "127.0.0.1"
	p.Min, p.Max = 1, 1
	node, err := backend.Open(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	if _, err := node.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + p.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := execute(t, "status", p.Endpoint)
	ages := regexp.MustCompile(`[0-9.]+ s\b|\d+ connections?`)
	mask := func(text string) string { return ages.ReplaceAllString(text, "*") }
	if got := mask(string(body)); got != mask(shown) {
		t.Errorf("curl shows\n%s\nstatus\n%s", got, mask(shown))
	}
	if !regexp.MustCompile(`(?m)^gpu-a +0 +running`).Match(body) {
		t.Errorf("the node is not called gpu-a:\n%s", body)
	}
}
