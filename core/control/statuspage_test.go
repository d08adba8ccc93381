package control

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"rallypoint/core/control/controltest"
	"rallypoint/internal/httpport"
)

const fromBrowser = "User-Agent: Mozilla/5.0\r\nAccept-Language: en\r\nAccept: text/html,*/*;q=0.8\r\n"

// ask sends a GET with that Host and header lines.
func ask(t *testing.T, s *fakeServer, path, host, header string) (*http.Response, string) {
	t.Helper()
	n := dialNode(t, s.addr)
	n.write([]byte("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + header + "\r\n"))
	resp, err := http.ReadResponse(n.frames.In, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// TestStatusPage: a browser gets the page, unless it asks for a foreign name; a client that
// asks for no page gets the list of paths where there is no text.
func TestStatusPage(t *testing.T) {
	s := newFakeServer(t, Config{})
	resp, body := ask(t, s, "/", s.addr, fromBrowser)
	if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") || !strings.Contains(body, "<title>Rallypoint</title>") {
		t.Errorf("%d %v %.100q", resp.StatusCode, resp.Header, body)
	}
	if policy := resp.Header.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") {
		t.Errorf("the policy is %q", policy)
	}
	if resp, body := ask(t, s, "/", "evil.example", fromBrowser); resp.StatusCode != 421 || strings.Contains(body, "<") {
		t.Errorf("a foreign name: %d %q", resp.StatusCode, body)
	}
	if resp, body := ask(t, s, "/", s.addr, "Accept: */*\r\n"); resp.StatusCode != 404 || !strings.Contains(body, "/status?rdzv_id=ID") || resp.Header.Get("Vary") != "Accept" {
		t.Errorf("curl: %d %q", resp.StatusCode, body)
	}
}

// TestStatusAsText: a client that asks for no page gets the status as text, of one run if it is
// asked for.
func TestStatusAsText(t *testing.T) {
	s := newFakeServer(t, Config{Text: func(st Status) string { return fmt.Sprintf("%d of %d runs\n", len(st.Runs), st.RunsTotal) }})
	twoNodes(t, s)
	h := testHello("c", "s9", controltest.Params("", 2))
	h.RunID = "other"
	dialNode(t, s.addr).enter(h)
	for path, want := range map[string]string{"/": "2 of 2 runs\n", "/?rdzv_id=other": "1 of 1 runs\n"} {
		for _, accept := range []string{"Accept: */*\r\n", ""} {
			resp, body := ask(t, s, path, s.addr, accept)
			if resp.StatusCode != 200 || body != want || resp.Header.Get("Content-Type") != httpport.PlainText || resp.Header.Get("Vary") != "Accept" {
				t.Errorf("%s, %q: %d %v %q", path, accept, resp.StatusCode, resp.Header, body)
			}
		}
	}
	if resp, body := ask(t, s, "/?rdzv_id=none", s.addr, ""); resp.StatusCode != 404 || !strings.Contains(body, "none") {
		t.Errorf("a run that is not there: %d %q", resp.StatusCode, body)
	}
}

// TestStatusTag: while nothing changes, a client that has the answer gets no other; each change
// brings another tag, of that run and of all runs.
func TestStatusTag(t *testing.T) {
	s := newFakeServer(t, Config{})
	twoNodes(t, s)
	c := dialNode(t, s.addr)
	other := controltest.Params("", 2)
	h := testHello("c", "s9", other)
	h.RunID = "other"
	c.enter(h)

	tagOf := func(path string) string {
		t.Helper()
		resp, body := ask(t, s, path, "x", "")
		tag := resp.Header.Get("ETag")
		if resp.StatusCode != 200 || !strings.HasPrefix(tag, `W/"`) || !strings.HasPrefix(body, "{") {
			t.Fatalf("%s: %d %q %.100q", path, resp.StatusCode, tag, body)
		}
		return tag
	}
	all, one, two := tagOf("/status"), tagOf("/status?rdzv_id=run"), tagOf("/status?rdzv_id=other")
	if brief := tagOf("/status?nodes=0"); all == one || one == two || brief == all {
		t.Errorf("the tags are %s, %s, %s, without nodes %s", all, one, two, brief)
	}
	for path, tag := range map[string]string{"/status": all, "/status?rdzv_id=run": `"x", ` + tagOf("/status?rdzv_id=run"), "/status?rdzv_id=other": strings.TrimPrefix(two, "W/")} {
		resp, body := ask(t, s, path, "x", "If-None-Match: "+tag+"\r\n")
		if resp.StatusCode != http.StatusNotModified || body != "" || resp.Header.Get("ETag") == "" {
			t.Errorf("%s with %s: %d %q", path, tag, resp.StatusCode, body)
		}
	}
	s.clock.Advance(helloTimeout / 2) // ages are no change
	if again := tagOf("/status"); again != all {
		t.Error("the tag changes with the time")
	}

	c.ask(1, controltest.Join())
	awaitRun := controltest.Context(t)
	for tagOf("/status?rdzv_id=other") == two {
		if awaitRun.Err() != nil {
			t.Fatal("a join changes no tag")
		}
	}
	if tagOf("/status") == all || tagOf("/status?rdzv_id=run") != one {
		t.Error("a change of one run has to show in all runs' tag, and in no other run's")
	}
	resp, _ := ask(t, s, "/status", "x", "If-None-Match: "+all+"\r\n")
	if resp.StatusCode != 200 {
		t.Errorf("an old tag: %d", resp.StatusCode)
	}
	for _, header := range []string{"", "If-None-Match: *\r\n", "If-None-Match: " + one + "\r\n"} {
		if resp, _ := ask(t, s, "/status?rdzv_id=none", "x", header); resp.StatusCode != 404 || resp.Header.Get("ETag") != "" {
			t.Errorf("a run that is not there: %d %q", resp.StatusCode, resp.Header.Get("ETag"))
		}
	}
}

// TestChangesNameTheirRound: a change before a round is complete bears the number of
// the one before, its completion its own.
func TestChangesNameTheirRound(t *testing.T) {
	s := newFakeServer(t, Config{})
	twoNodes(t, s)
	for _, c := range s.oneRun(t).Changes {
		want := uint64(0)
		if strings.HasPrefix(c.Text, "round 1 is complete") {
			want = 1
		}
		if c.Round != want {
			t.Errorf("%q: round %d, want %d", c.Text, c.Round, want)
		}
	}
	if changes := s.oneRun(t).Changes; changes[len(changes)-1].Round != 1 {
		t.Errorf("the last one of %+v is not of round 1", changes)
	}
}

// TestPageIsStatic: one small document that asks only its own origin, and makes no
// string into markup.
func TestPageIsStatic(t *testing.T) {
	text := string(document)
	if len(text) > 46_500 {
		t.Errorf("the page has %d bytes", len(text))
	}
	for _, element := range []string{"script", "style"} {
		if n := strings.Count(text, "<"+element); n != 1 {
			t.Errorf("%d elements %s: the policy names the hash of one", n, element)
		}
	}
	for _, url := range regexp.MustCompile(`[a-z]+://[^'" ]+`).FindAllString(text, -1) {
		if url != "http://www.w3.org/2000/svg" { // a name, which no browser asks for
			t.Errorf("it names %s", url)
		}
	}
	for _, unsafe := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "createContextualFragment", "srcdoc", "javascript:"} {
		if strings.Contains(text, unsafe) {
			t.Errorf("it uses %s", unsafe)
		}
	}
	if found := regexp.MustCompile(`<[^>]* (on[a-z]+|style)=`).FindString(text); found != "" {
		t.Errorf("the policy forbids %q", found)
	}
}

func TestPolicyAllowsThePageAlone(t *testing.T) {
	w := httptest.NewRecorder()
	servePage(w)
	if w.Code != http.StatusOK || w.Body.String() != string(document) {
		t.Fatalf("%d, %d bytes", w.Code, w.Body.Len())
	}
	policy := w.Header().Get("Content-Security-Policy")
	for _, element := range []string{"script", "style"} {
		text := regexp.MustCompile(`(?s)<` + element + `>(.*)</` + element + `>`).FindSubmatch(document)[1]
		sum := sha256.Sum256(text)
		if want := element + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "';"; !strings.Contains(policy, want) {
			t.Errorf("%q is not in the policy %q", want, policy)
		}
	}
	for _, want := range []string{"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("%q is not in the policy %q", want, policy)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") {
		t.Errorf("the policy is %q", policy)
	}
}

func TestWantsPage(t *testing.T) {
	for accept, want := range map[string]bool{
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": true,
		"*/*": false, "": false, "application/json": false, "text/plain;version=0.0.4": false,
	} {
		if got := wantsPage(&http.Request{Header: http.Header{"Accept": {accept}}}); got != want {
			t.Errorf("%q: %v", accept, got)
		}
	}
}
