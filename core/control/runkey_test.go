package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/internal/testkit"
)

// runKey is the token of one run.
func runKey(t *testing.T, token, run string) string {
	t.Helper()
	line, err := secret.RunKey([]byte(token), run)
	if err != nil {
		t.Fatal(err)
	}
	return string(line)
}

// TestForeignRun: the token of a run opens that run, and nothing of another one: neither a
// hello nor an administrator's request, nor a page, also when the server's token is changed.
func TestForeignRun(t *testing.T) {
	s := newFakeServer(t, Config{Token: openToken(t, otherToken, goodToken)})
	node := func(run, file string) (err error) {
		p := withToken(s.addr, file, 1)
		p.RunID = run
		c := newTestClient(t, p, controltest.NewObserver())
		if err := c.Connect(controltest.Context(t)); err != nil {
			return err
		}
		controltest.Outcome(t, c.Start(controltest.Join()))
		return nil
	}
	mine, master := testkit.TokenFile(t, runKey(t, goodToken, "mine")), testkit.TokenFile(t, goodToken)
	if err := errors.Join(node("mine", mine), node("theirs", master), node("other", testkit.TokenFile(t, runKey(t, otherToken, "other")))); err != nil {
		t.Fatal(err)
	}
	controltest.WantCode(t, node("theirs", mine), rendezvous.CodeAuth, `the token opens run "mine" only, not "theirs"`)
	forged := strings.Replace(runKey(t, goodToken, "mine"), ":mine", ":theirs", 1)
	controltest.WantCode(t, node("theirs", testkit.TokenFile(t, forged)), rendezvous.CodeAuth, "does not know the token")

	key, err := secret.OpenToken(mine, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx := controltest.Context(t)
	for _, run := range []string{"theirs", "none"} {
		if _, err := client.Ask(ctx, s.addr, key, run, rendezvous.CloseRun{Reason: "x", Stop: true}); rendezvous.CodeOf(err) != rendezvous.CodeAuth {
			t.Errorf("an administrator's close of run %s: %v", run, err)
		}
	}
	if _, err := client.Ask(ctx, s.addr, key, "mine", rendezvous.CloseRun{Reason: "x"}); err != nil {
		t.Errorf("of its own run: %v", err)
	}
	for path, want := range map[string]int{
		"/status?rdzv_id=mine": 200, "/status?rdzv_id=theirs": 403, "/status?rdzv_id=none": 403, "/status": 403, "/metrics": 403, "/": 403, "/healthz": 200,
	} {
		conn, err := client.DialHTTP(ctx, s.addr, key)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: "+s.addr+"\r\nConnection: close\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(path, err)
		}
		body, _ := io.ReadAll(resp.Body)
		conn.Close()
		if resp.StatusCode != want || strings.Contains(string(body), "theirs") {
			t.Errorf("%s: %d, %s", path, resp.StatusCode, body)
		}
		if path != "/status?rdzv_id=mine" {
			continue
		}
		var st Status
		if err := json.Unmarshal(body, &st); err != nil {
			t.Fatal(err)
		}
		if f := st.Runs[0].Members[0].Fingerprint; f != secret.Fingerprint([]byte(runKey(t, goodToken, "mine"))) {
			t.Errorf("its own fingerprint: %q", f)
		}
		if sv := st.Server; sv.PID != 0 || sv.Connections != 0 || len(sv.Fingerprints)+len(sv.Refused) != 0 {
			t.Errorf("what is of the server and others: %+v", sv)
		}
	}
}

// TestRunKeyAtItsHost: a job whose nodes have only its own token hosts its control plane.
func TestRunKeyAtItsHost(t *testing.T) {
	s := newFakeServer(t, Config{Token: openToken(t, runKey(t, goodToken, "mine"))})
	p := withToken(s.addr, testkit.TokenFile(t, runKey(t, goodToken, "mine")), 1)
	p.RunID = "mine"
	c := newTestClient(t, p, controltest.NewObserver())
	if err := c.Connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	p.TokenFile = testkit.TokenFile(t, runKey(t, goodToken, "other"))
	p.RunID = "other"
	controltest.WantCode(t, newTestClient(t, p, controltest.NewObserver()).Connect(controltest.Context(t)), rendezvous.CodeAuth, "does not know the token")
	// The whole line keys the MACs, but opens nothing for a peer that does not say which run.
	n := secureNode(t, s.addr)
	o := n.transcript()
	n.write(opening(wire.Proof{MACs: o.Prove(secret.OfNode, [][]byte{[]byte(runKey(t, goodToken, "mine"))}), Purpose: o.Purpose}, attackHello()))
	n.wantDenied()
}
