package httpport

import (
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
)

// Names are the names that a service knows to be its own, beside the addresses and
// "localhost": those of its machine and some that it is given.
type Names map[string]bool

// NewNames adds the machine's name to those that are given.
func NewNames(names ...string) Names {
	own := Names{}
	if name, err := os.Hostname(); err == nil {
		full := canonical(name)
		short, _, _ := strings.Cut(full, ".")
		own[full], own[short] = true, true
	}
	for _, name := range names {
		own[canonical(name)] = true
	}
	return own
}

// foreign reports whether a request may come from the page of a stranger: a browser has
// sent it, and its Host is a name that a stranger may hold. A scraper or a probe
// runs no pages and may use any name: the machine cannot know them all (a Service's, that
// of a mesh or a load balancer).
func (n Names) foreign(r *http.Request) bool {
	return !n.Own(r) && fromBrowser(r.Header)
}

// Own reports whether a request's Host is an address, or a name that is this machine's. A name
// without a dot is none: whoever answers for names on the network decides which machine it names.
func (n Names) Own(r *http.Request) bool {
	host := canonical(hostOf(r.Host))
	switch {
	case host == "", isAddress(host), n[host]:
		return true
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

// The answer to a foreign request.
const (
	Misdirected     = http.StatusMisdirectedRequest
	MisdirectedText = "this service does not go by the name that the browser has asked for: ask by an address of its machine"
)

// Guard refuses foreign requests, but not those for whether the process lives, which is no
// secret. The answer ends in hint; refused counts them.
func (n Names) Guard(next http.Handler, hint string, refused func()) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if Alive(r) || !n.foreign(r) {
			next.ServeHTTP(w, r)
			return
		}
		refused()
		Answer(w, Misdirected, PlainText, []byte(MisdirectedText+hint+"\n"))
	})
}

// fromBrowser reports whether a browser has made the request. A page cannot take all of
// these off: it can make Accept-Language empty and, in some browsers, change User-Agent.
func fromBrowser(h http.Header) bool {
	for _, name := range []string{"Accept-Language", "Origin", "Referer", "Cookie", "Upgrade-Insecure-Requests"} {
		if _, there := h[name]; there {
			return true
		}
	}
	for name := range h {
		if strings.HasPrefix(name, "Sec-") {
			return true
		}
	}
	return strings.Contains(h.Get("User-Agent"), "Mozilla/")
}

func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

// canonical is a name as it is compared: in lower case, without brackets and the root's dot.
func canonical(host string) string {
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// isAddress reports whether it is an address in any form that a resolver or a browser
// takes for one (127.1, 0x7f000001): no domain ends in a label that is a number.
func isAddress(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	last := host[strings.LastIndexByte(host, '.')+1:]
	hex := strings.TrimPrefix(last, "0x")
	digits := "0123456789"
	if hex != last {
		digits += "abcdef"
	}
	return last != "" && strings.Trim(hex, digits) == ""
}
