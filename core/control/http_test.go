package control

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/httpport"
	"rallypoint/internal/promtext"
	"rallypoint/internal/testkit"
)

// get fetches a page of the port.
func get(t *testing.T, addr, path string) (code int, contentType, body string) {
	t.Helper()
	limit := testkit.Patience
	if long {
		limit = 10 * time.Minute // among 10000 connections, on a machine with much else to do
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: limit}
	resp, err := client.Get("http://" + addr + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("Content-Type"), string(text)
}

func TestHTTP(t *testing.T) {
	s := newFakeServer(t, Config{})
	twoNodes(t, s)
	if code, _, body := get(t, s.addr, "/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("/healthz: %d %q", code, body)
	}
	for _, path := range []string{"/", "/status/x", "/debug/pprof"} {
		if code, _, body := get(t, s.addr, path); code != 404 || !strings.Contains(body, "/status") {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	for _, path := range []string{"/status", "/status?rdzv_id=run"} {
		code, kind, body := get(t, s.addr, path)
		var st Status
		if err := json.Unmarshal([]byte(body), &st); err != nil || code != 200 || kind != "application/json" {
			t.Fatalf("%s: %d %s %q, %v", path, code, kind, body, err)
		}
		if len(st.Runs) != 1 || st.Runs[0].RunID != "run" || len(st.Runs[0].Members) != 2 || st.Server.Connections < 2 {
			t.Errorf("%s: %+v", path, st)
		}
	}
	for _, path := range []string{"/status?nodes=0", "/status?rdzv_id=run&nodes=0"} {
		var st Status
		code, _, body := get(t, s.addr, path)
		if err := json.Unmarshal([]byte(body), &st); err != nil || code != 200 || len(st.Runs) != 1 {
			t.Fatalf("%s: %d %q, %v", path, code, body, err)
		}
		if r := st.Runs[0]; len(r.Members) != 0 || r.Counts != (rendezvous.CountsStatus{Running: 2}) || strings.Contains(body, "null,\"waiting") || !strings.Contains(body, `"members":[]`) {
			t.Errorf("%s: %s", path, body)
		}
	}
	for _, bad := range []string{"2", "", "-1", "all"} {
		if code, _, body := get(t, s.addr, "/status?nodes="+bad); code != 400 || !strings.Contains(body, "expected 0") {
			t.Errorf("nodes=%s: %d %q", bad, code, body)
		}
	}
	code, kind, body := get(t, s.addr, "/status?rdzv_id=j%22")
	var none NoRun
	if err := json.Unmarshal([]byte(body), &none); err != nil || code != 404 || kind != "application/json" {
		t.Fatalf("%d %s %q, %v", code, kind, body, err)
	}
	if len(none.Runs) != 1 || none.Runs[0] != "run" || !strings.Contains(none.Error, `knows no run "j\"": it knows "run"`) {
		t.Errorf("%+v", none)
	}
	n := dialNode(t, s.addr)
	n.write([]byte("GET /healthz HTTP/1.1\r\n")) // half a request; the test's end must not wait for it
}

// TestHTTPMethods: HEAD has the header alone, OPTIONS and every method that would change
// something have what is allowed; a request with a body is answered before it is closed.
func TestHTTPMethods(t *testing.T) {
	s := newFakeServer(t, Config{})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: testkit.Patience}
	for _, c := range []struct {
		method string
		code   int
		allow  string
	}{
		{"HEAD", 200, ""}, {"OPTIONS", 204, "GET, HEAD, OPTIONS"},
		{"POST", 405, "GET, HEAD, OPTIONS"}, {"PUT", 405, "GET, HEAD, OPTIONS"}, {"PATCH", 405, "GET, HEAD, OPTIONS"},
		{"DELETE", 405, "GET, HEAD, OPTIONS"}, {"TRACE", 405, "GET, HEAD, OPTIONS"}, {"CONNECT", 405, "GET, HEAD, OPTIONS"},
	} {
		for _, path := range []string{"/healthz", "/metrics", "/status"} {
			var body io.Reader
			if c.code == 405 && c.method[0] == 'P' {
				body = strings.NewReader(strings.Repeat("x", 1<<20))
			}
			request, err := http.NewRequest(c.method, "http://"+s.addr+path, body)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(request)
			if err != nil {
				t.Errorf("%s %s: %v", c.method, path, err)
				continue
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != c.code || resp.Header.Get("Allow") != c.allow {
				t.Errorf("%s %s: %s, allowed %q, %v", c.method, path, resp.Status, resp.Header.Get("Allow"), err)
			}
			if length := resp.ContentLength; c.method == "HEAD" && (len(text) > 0 || length <= 0) {
				t.Errorf("HEAD %s: %d bytes, length %d", path, len(text), length)
			}
		}
	}
	for _, start := range []string{"PRI * HTTP/2.0\r\n\r\n", "HELO", "Gxxx", "POST"} { // no HTTP, another one, or half of it
		n := dialNode(t, s.addr)
		n.write([]byte(start))
	}
	if code, _, _ := get(t, s.addr, "/healthz"); code != 200 {
		t.Errorf("/healthz: %d", code)
	}
}

// TestHTTPIsBounded sends a header that is too long, many halves of a request, and
// too many requests.
func TestHTTPIsBounded(t *testing.T) {
	s := newFakeServer(t, Config{})
	n := dialNode(t, s.addr)
	n.write([]byte("GET /status HTTP/1.1\r\nHost: x\r\n"))
	go func() { // it is refused before all of it is read
		_, _ = n.conn.Write([]byte("X: " + strings.Repeat("x", 4*httpport.MaxHead) + "\r\n\r\n"))
	}()
	if answer, err := n.frames.In.ReadString('\n'); err != nil || !strings.Contains(answer, "431") {
		t.Errorf("a long header was answered with %q, %v", answer, err)
	}
	n.conn.Close()
	s.awaitRefused(t, refusedMalformed, 1)

	for range 2 * maxHTTPConns {
		dialNode(t, s.addr).write([]byte("GET /status HTTP/1.1\r\n"))
	}
	if code, _, _ := get(t, s.addr, "/status"); code != http.StatusOK {
		t.Errorf("among halves of requests: %d", code)
	}
	roomy := s.http
	s.http = httpport.New(newPages(s.Server), 0, s.Server.log) // as if so many were being answered
	if code, _, _ := get(t, s.addr, "/status"); code != http.StatusServiceUnavailable {
		t.Errorf("one more was answered with %d", code)
	}
	s.log.Await(t, httpport.ErrCrowded.Error(), 1)
	if code, _, body := get(t, s.addr, "/healthz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz in a crowd: %d %q", code, body)
	}
	s.http = roomy
	if code, _, _ := get(t, s.addr, "/metrics"); code != http.StatusOK {
		t.Errorf("after the crowd: %d", code)
	}
	// Nodes are not held up by any of this.
	a := dialNode(t, s.addr)
	a.enter(testHello("a", "s1", controltest.Params("", 1)))
	a.ask(1, controltest.Join())
	a.wantReply(1)
	for ctx := controltest.Context(t); s.metrics.refused[refusedSilent].Load() < 2*maxHTTPConns; {
		if ctx.Err() != nil {
			t.Fatal("halves of requests are not cut off")
		}
		s.clock.Advance(helloTimeout) // of those that are accepted by now
	}
}

// TestHTTPRequests sends requests in the ways in which they come.
func TestHTTPRequests(t *testing.T) {
	s := newFakeServer(t, Config{})
	for name, test := range map[string]struct {
		parts []string
		want  string
	}{
		"by hand":          {[]string{"GET /healthz HTTP/1.0\n\n"}, "HTTP/1.1 200 OK"},
		"mixed ends":       {[]string{"GET /healthz HTTP/1.1\r\nHost: x\n\r\n"}, "HTTP/1.1 200 OK"},
		"byte by byte":     {strings.Split("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", ""), "HTTP/1.1 200 OK"},
		"a long header":    {[]string{"GET /healthz HTTP/1.1\r\nX: " + strings.Repeat("x", httpport.MaxHead-100), "\r\n", "\r\n"}, "HTTP/1.1 200 OK"},
		"a body to come":   {[]string{"GET /metrics HTTP/1.1\r\nContent-Length: 100\r\n\r\n"}, "HTTP/1.1 200 OK"},
		"chunks to come":   {[]string{"GET /status HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"}, "HTTP/1.1 200 OK"},
		"not there":        {[]string{"GET /debug/pprof/ HTTP/1.1\r\n\r\n"}, "HTTP/1.1 404 Not Found"},
		"two slashes":      {[]string{"GET //healthz HTTP/1.1\r\n\r\n"}, "HTTP/1.1 307 Temporary Redirect"},
		"no version":       {[]string{"GET /healthz\r\n\r\n"}, "HTTP/1.1 400 Bad Request"},
		"no path":          {[]string{"GET  HTTP/1.1\r\n\r\n"}, "HTTP/1.1 400 Bad Request"},
		"a broken header":  {[]string{"GET /healthz HTTP/1.1\r\n: x\r\n\r\n"}, "HTTP/1.1 400 Bad Request"},
		"a folded header":  {[]string{"GET /healthz HTTP/1.1\r\nA: x\r\n y\r\n\r\n"}, "HTTP/1.1 200 OK"},
		"ends after first": {[]string{"GET /healthz HTTP/1.1\r\n", "\r", "\n"}, "HTTP/1.1 200 OK"},
	} {
		t.Run(name, func(t *testing.T) {
			n := dialNode(t, s.addr)
			for _, part := range test.parts {
				n.write([]byte(part))
			}
			answer, err := n.frames.In.ReadString('\n')
			if err != nil || strings.TrimSpace(answer) != test.want {
				t.Errorf("the answer is %q, %v; want %q", answer, err, test.want)
			}
			n.awaitEnd()
		})
	}
}

// TestHTTPForAStrangersPage asks as a browser does whose page has made its own name stand
// for this machine, and as those who may use any name.
func TestHTTPForAStrangersPage(t *testing.T) {
	s := newFakeServer(t, Config{HTTPNames: []string{"status.example"}})
	const browser = "User-Agent: Mozilla/5.0\r\nAccept-Language: en\r\n"
	for _, test := range []struct {
		path, host, header string
		want               int
	}{
		{"/status", "evil.example:29400", browser, 421},
		{"/metrics", "evil.example", browser, 421},
		{"/none", "evil.example", browser, 421},
		{"/healthz", "evil.example", browser, 200},
		{"/status", s.addr, browser, 200},
		{"/status", "status.example", browser, 200},
		{"/metrics", "rallypoint.jobs.svc.cluster.local:29400", "User-Agent: Prometheus/3.7.1\r\n", 200},
	} {
		n := dialNode(t, s.addr)
		n.write([]byte("GET " + test.path + " HTTP/1.1\r\nHost: " + test.host + "\r\n" + test.header + "\r\n"))
		resp, err := http.ReadResponse(n.frames.In, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := io.ReadAll(resp.Body); resp.StatusCode != test.want || test.want == 421 && !strings.Contains(string(body), "--http-name") {
			t.Errorf("%s of %s: %d %q, want %d", test.path, test.host, resp.StatusCode, body, test.want)
		}
	}
	s.awaitRefused(t, refusedHost, 3)
}

// TestStrangersPageAtANode: the control plane of a node has no option that its page could name.
func TestStrangersPageAtANode(t *testing.T) {
	for runID, option := range map[string]bool{"": true, "job": false} {
		s := newFakeServer(t, Config{RunID: runID})
		n := dialNode(t, s.addr)
		n.write([]byte("GET /status HTTP/1.1\r\nHost: evil.example\r\nUser-Agent: Mozilla/5.0\r\nAccept-Language: en\r\n\r\n"))
		resp, err := http.ReadResponse(n.frames.In, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusMisdirectedRequest || strings.Contains(string(body), "--http-name") != option {
			t.Errorf("run %q: %d %q, %v", runID, resp.StatusCode, body, err)
		}
	}
}

// scrape fetches the metrics and parses them with Prometheus's own parser. Keys
// are "name" or "name{label=value,...}".
func scrape(t *testing.T, addr string) map[string]float64 {
	t.Helper()
	code, kind, body := get(t, addr, "/metrics")
	if code != 200 || kind != promtext.ContentType {
		t.Fatalf("%d %s", code, kind)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatalf("%v in\n%s", err, body)
	}
	values := map[string]float64{}
	for name, f := range families {
		if f.GetHelp() == "" || f.Type == nil {
			t.Errorf("%s has no help or type", name)
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			key := name
			if len(labels) > 0 {
				key += "{" + strings.Join(labels, ",") + "}"
			}
			if _, twice := values[key]; twice {
				t.Errorf("%s comes twice", key)
			}
			switch {
			case m.Counter != nil:
				if !strings.HasSuffix(name, "_total") {
					t.Errorf("the counter %s does not end in _total", name)
				}
				values[key] = m.GetCounter().GetValue()
			case m.Gauge != nil:
				values[key] = m.GetGauge().GetValue()
			case m.Histogram != nil:
				h := m.GetHistogram()
				values[key+"_count"], values[key+"_sum"] = float64(h.GetSampleCount()), h.GetSampleSum()
				for _, b := range h.GetBucket() {
					values[fmt.Sprintf("%s{le=%v}", key, b.GetUpperBound())] = float64(b.GetCumulativeCount())
				}
			}
		}
	}
	return values
}

func wantValues(t *testing.T, got map[string]float64, want map[string]float64) {
	t.Helper()
	for key, value := range want {
		if v, ok := got["rallypoint_"+key]; !ok || v != value {
			t.Errorf("%s is %v (%v), want %v", key, v, ok, value)
		}
	}
}

func TestMetrics(t *testing.T) {
	s := newFakeServer(t, Config{})
	scrape(t, s.addr) // nothing has happened
	p := controltest.Params("", 2)
	a, b := dialNode(t, s.addr), dialNode(t, s.addr)
	a.enter(testHello("a", "s1", p))
	b.enter(testHello("b", "s2", p))
	a.ask(1, controltest.Join())
	awaitEvents[rendezvous.Join](t, s.rec, 1)
	s.clock.Advance(1200 * time.Millisecond)
	wantValues(t, scrape(t, s.addr), map[string]float64{
		"nodes{state=waiting}": 1, "nodes{state=idle}": 1, "runs{phase=forming}": 1, "missing_nodes": 1,
		"longest_forming_seconds": 1.2, "run_missing_nodes{run=run}": 1, "round_duration_seconds_count": 0,
	})
	b.ask(1, controltest.Join())
	b.wantReply(1)
	s.awaitRound(t, 1)
	wrong := testHello("c", "s3", controltest.Params("", 3))
	dialNode(t, s.addr).greet(wrong)
	stranger := dialNode(t, s.addr)
	stranger.write([]byte{0})
	stranger.awaitEnd()
	a.ask(2, rendezvous.KeyRequest{Round: 1, Op: store.OpSet, Keys: []string{"k"}, Values: [][]byte{{1}}})
	awaitEvents[rendezvous.KeyRequest](t, s.rec, 1)
	a.send(wire.Request{Number: 3, Op: 99})
	for answered := false; !answered; {
		r, ok := a.next().(wire.Reply)
		answered = ok && r.Number == 3
	}
	b.conn.Close()
	awaitEvents[rendezvous.Disconnect](t, s.rec, 1)
	s.clock.Advance(p.ReconnectGrace)
	s.log.Await(t, "refused a node", 1)
	s.log.Await(t, "PyTorch", 1)
	client.Ask(controltest.Context(t), s.addr, nil, "run", rendezvous.Evict{Node: "a", Reason: "x"})
	client.Ask(controltest.Context(t), s.addr, nil, "run", rendezvous.CloseRun{Reason: "x", Stop: true})
	a.awaitEnd()
	for end := time.Now().Add(testkit.Patience); s.http.Open() > 0 && time.Now().Before(end); { // earlier scrapes
		time.Sleep(time.Millisecond)
	}
	wantValues(t, scrape(t, s.addr), map[string]float64{
		"nodes{state=lost}": 2, "runs{phase=closed}": 1, "missing_nodes": 0, "longest_forming_seconds": 0,
		"round_duration_seconds_count": 1, "round_duration_seconds_sum": 1.2,
		"round_duration_seconds{le=1}": 0, "round_duration_seconds{le=2.5}": 1, "round_duration_seconds{le=+Inf}": 1,
		"nodes_lost_total{cause=connection}": 1, "nodes_lost_total{cause=evicted}": 1, "nodes_lost_total{cause=lease}": 0,
		"runs_closed_total{how=failed}": 1, "runs_closed_total{how=ended_successfully}": 0,
		"refused_total{reason=mismatch}": 1, "refused_total{reason=tcpstore_client}": 1, "refused_total{reason=unknown_request}": 1,
		"connections{kind=http}": 1, "connections{kind=node}": 0,
		"received_frames_total{kind=hello}": 3, "received_frames_total{kind=admin}": 2, "received_frames_total{kind=request}": 4,
		"sent_frames_total{kind=welcome}": 2, "sent_frames_total{kind=refuse}": 1, "sent_frames_total{kind=drop}": 1,
		"requests_total{operation=join}": 2, "requests_total{operation=unknown}": 1, "requests_total{operation=key}": 1,
		"key_operations_total{operation=set}": 1, "admin_requests_total{operation=evict}": 1, "runs_unlisted": 0,
	})
	if v := scrape(t, s.addr); v["rallypoint_received_bytes_total"] == 0 || v["rallypoint_sent_bytes_total"] == 0 || v["rallypoint_connections_accepted_total"] < 8 {
		t.Errorf("traffic %v", v)
	}
}

// TestMetricsAreDescribed compares the metrics with their page.
func TestMetricsAreDescribed(t *testing.T) {
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	s := newFakeServer(t, Config{})
	_, _, body := get(t, s.addr, "/metrics")
	for line := range strings.Lines(body) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok && !strings.Contains(string(page), "`"+strings.Fields(name)[0]+"`") {
			t.Errorf("docs/metrics.md does not describe %s", name)
		}
	}
	for _, name := range slices.Concat(lostNames[:], refusalNames[1:]) {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/metrics.md does not describe %s", name)
		}
	}
}

// BenchmarkMetrics is a scrape of a server with many runs.
func BenchmarkMetrics(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := Start(Config{}, l)
	defer s.Close()
	const runs = 10000
	for i := range runs {
		s.runFor(fmt.Sprint("run", i), netip.Addr{})
	}
	for b.Loop() {
		s.metricsPage()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/runs, "ns/run")
}

// TestMetricsCount counts the other ways in which a node goes.
func TestMetricsCount(t *testing.T) {
	atOnce(t)
	p := controltest.Params("", 2)
	for want, happen := range map[string]func(s *fakeServer, a, b *wireNode){
		"nodes_lost_total{cause=lease}": func(s *fakeServer, _, b *wireNode) {
			for range 8 {
				s.clock.Advance(p.LeaseTimeout / 4)
				b.send(wire.Beat{})
				s.awaitHeard(t, "s2")
			}
		},
		"nodes_lost_total{cause=replaced}": func(s *fakeServer, _, _ *wireNode) {
			h := testHello("a", "new", p)
			h.Incarnation = 2
			dialNode(t, s.addr).enter(h)
		},
		"nodes_lost_total{cause=gave_up}": func(s *fakeServer, a, _ *wireNode) {
			a.ask(2, controltest.Join())
			a.ask(3, rendezvous.Withdraw{Join: 2})
			awaitEvents[rendezvous.Withdraw](t, s.rec, 1)
		},
		"nodes_left_total{ending=left}": func(s *fakeServer, a, _ *wireNode) {
			a.ask(2, rendezvous.Leave{})
			a.ask(2, rendezvous.Leave{}) // repeated, as after a reconnect
			awaitEvents[rendezvous.Leave](t, s.rec, 2)
		},
		"runs_closed_total{how=ended_successfully}": func(s *fakeServer, a, _ *wireNode) {
			a.ask(2, rendezvous.Leave{Ending: rendezvous.EndSuccess})
			awaitEvents[rendezvous.Leave](t, s.rec, 1)
		},
		"stalls_total": func(s *fakeServer, _, _ *wireNode) { s.clock.Jump(2 * p.LeaseTimeout) },
	} {
		t.Run(want, func(t *testing.T) {
			s := newFakeServer(t, Config{})
			a, b := twoNodes(t, s)
			happen(s, a, b)
			wantValues(t, scrape(t, s.addr), map[string]float64{want: 1})
		})
	}
}

// TestMetricsOfAFreshControlPlane counts members that do not come back.
func TestMetricsOfAFreshControlPlane(t *testing.T) {
	atOnce(t)
	s := newFakeServer(t, Config{Fixed: true})
	p := controltest.Params("", 4)
	p.Min = 2
	a := dialNode(t, s.addr)
	h := testHello("a", "s1", p)
	h.LastRound = rendezvous.LastRound{Generation: "old", Round: 7, Rank: 1, World: 4, HostRank: 0}
	a.enter(h)
	wantValues(t, scrape(t, s.addr), map[string]float64{"nodes_lost_total{cause=restart}": 1, "nodes{state=unknown}": 2, "run_round{run=run}": 7})
	for range 10 {
		s.clock.Advance(p.LeaseTimeout / 8)
		a.send(wire.Beat{})
		s.awaitHeard(t, "s1")
	}
	wantValues(t, scrape(t, s.addr), map[string]float64{"nodes_lost_total{cause=restart}": 3, "nodes{state=lost}": 3})
	if r := s.oneRun(t); r.RoundAt != nil || r.RoundStore != "" || r.Round != 7 {
		t.Errorf("a round that another control plane completed: %+v", r)
	}
}

// TestMetricsHaveFewLabels makes more runs than have metrics of their own, some
// with odd names.
func TestMetricsHaveFewLabels(t *testing.T) {
	s := newFakeServer(t, Config{})
	var nodes []*wireNode
	for i := range maxRunLabels + 3 {
		p := controltest.Params("", 2)
		p.RunID = fmt.Sprint("run ", i)
		switch i {
		case 0:
			p.RunID = "\xff\xfe"
		case 1:
			p.RunID = "\"}\n# HELP x\\"
		}
		n := dialNode(t, s.addr)
		n.enter(testHello("n", fmt.Sprint("s", i), p))
		nodes = append(nodes, n)
	}
	values := scrape(t, s.addr)
	wantValues(t, values, map[string]float64{
		"runs_unlisted": 3, "runs{phase=empty}": maxRunLabels + 3, "run_round{run=\"}\n# HELP x\\}": 0, "run_round{run=run 2}": 0,
	})
	listed := 0
	for key := range values {
		if strings.HasPrefix(key, "rallypoint_run_round{") {
			listed++
		}
	}
	if listed != maxRunLabels {
		t.Errorf("%d runs have metrics of their own, want %d", listed, maxRunLabels)
	}
	for _, n := range nodes {
		n.send(wire.Goodbye{})
		n.awaitEnd()
	}
}
