package statuspage

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

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
	Serve(w)
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

func TestWanted(t *testing.T) {
	for accept, want := range map[string]bool{
		"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8": true,
		"*/*": false, "": false, "application/json": false, "text/plain;version=0.0.4": false,
	} {
		if got := Wanted(&http.Request{Header: http.Header{"Accept": {accept}}}); got != want {
			t.Errorf("%q: %v", accept, got)
		}
	}
}
