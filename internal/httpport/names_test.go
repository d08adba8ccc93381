package httpport

import (
	"net/http"
	"os"
	"slices"
	"testing"
)

// The headers of those that ask, each as it is sent by a real one for a page of http.
var (
	chrome     = http.Header{"User-Agent": {"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/141.0.0.0 Safari/537.36"}, "Accept": {"*/*"}, "Accept-Encoding": {"gzip, deflate"}, "Accept-Language": {"en-US,en;q=0.9"}}
	disguised  = http.Header{"User-Agent": {"curl/8.5.0"}, "Accept": {"*/*"}, "Accept-Language": {""}} // by its page, as far as it can
	embedded   = http.Header{"User-Agent": {"x"}, "Sec-Fetch-Site": {"same-origin"}}
	prometheus = http.Header{"User-Agent": {"Prometheus/3.7.1"}, "Accept": {"text/plain;version=0.0.4"}, "Accept-Encoding": {"gzip"}, "X-Prometheus-Scrape-Timeout-Seconds": {"10"}}
	kubelet    = http.Header{"User-Agent": {"kube-probe/1.34"}, "Accept": {"*/*"}}
	curl       = http.Header{"User-Agent": {"curl/8.5.0"}, "Accept": {"*/*"}}
)

func TestForeign(t *testing.T) {
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	names := NewNames("Status.corp.example", "fd00::1")
	ours := []string{"", "127.0.0.1", "127.0.0.1:29400", "127.1:80", "2130706433", "0x7f.1", "0x7f000001:80", "[::1]:29400", "[fe80::1%25eth0]:1", "[::ffff:127.0.0.1]",
		"localhost:29400", "LOCALHOST.", "a.localhost:1", own + ":29400", "status.corp.example", "STATUS.corp.example.:80"}
	foreign := []string{"evil.example", "evil.example:29400", "evil.example.", "127.0.0.1.evil.example", "localhost.evil.example:1", own + ".evil.example",
		"a0.1x", "0xg.example", "status.corp.example.evil.example", "xlocalhost.example", "10.0.0.5.nip.io", "wpad", "no-node-of-mine:29400"}
	for _, test := range []struct {
		hosts   []string
		headers []http.Header
		want    bool
	}{
		{ours, []http.Header{chrome, disguised, embedded, prometheus, kubelet, curl}, false},
		{foreign, []http.Header{prometheus, kubelet, curl}, false},
		{foreign, []http.Header{chrome, disguised, embedded}, true},
	} {
		for _, host := range test.hosts {
			for _, header := range test.headers {
				if got := names.Own(&http.Request{Host: host, Header: header}); got != (host == "" || slices.Contains(ours, host)) {
					t.Errorf("%q is ours: %v", host, got)
				}
				if got := names.foreign(&http.Request{Host: host, Header: header}); got != test.want {
					t.Errorf("%q, %q: %v, want %v", host, header.Get("User-Agent"), got, test.want)
				}
			}
		}
	}
}
