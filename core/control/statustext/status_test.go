package statustext

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"rallypoint/core/control"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/printable"
)

var update = flag.Bool("update", false, "write the golden files again")

// screenWidth is that of the golden statuses.
const screenWidth = 100

// noon is the present of the golden statuses.
var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) *time.Time {
	t := noon.Add(-d)
	return &t
}

func age(seconds float64) *float64 { return &seconds }

func change(d time.Duration, text string) control.StatusChange {
	return control.StatusChange{At: *before(d), Text: text}
}

func sampleServer(runs ...control.RunStatus) control.Status {
	return control.Status{
		Schema: 1, RunsTotal: len(runs), Runs: runs,
		Server: &control.ServerStatus{
			ID: "id", Version: "0.1.0", Protocol: 1, Address: "10.0.0.5:29400", Host: "trainer0", PID: 4242,
			StartedAt: *before(3*time.Hour + 2*time.Minute), Now: noon, Connections: 5,
		},
	}
}

func memberOf(node string) (m control.MemberStatus) {
	m.Node = node
	return m
}

func memberRow(rank int, state string) control.MemberStatus {
	m := memberOf(fmt.Sprintf("node-%c", 'a'+rank))
	m.Rank, m.State, m.LeaseAgeS = rank, state, age(0.3+float64(rank))
	m.Label, m.Address = fmt.Sprintf("trainer%d pid %d", rank, 4000+rank), fmt.Sprintf("10.0.0.%d", 5+rank)
	return m
}

func waitingRow(node, role string) (w control.WaitingStatus) {
	w.Node, w.Role, w.NodeRank = node, role, -1
	return w
}

func idleRow(node string) (n control.IdleStatus) {
	n.Node = node
	return n
}

func lost(rank int, cause string) control.MemberStatus {
	m := memberRow(rank, "lost")
	m.Cause, m.Address, m.LeaseAgeS = cause, "", nil
	return m
}

// sampleRuns are runs in each phase.
func sampleRuns() map[string]control.RunStatus {
	return map[string]control.RunStatus{
		"forming": formingRun(), "running": runningRun(), "regroup": regroupingRun(), "finishing": finishingRun(), "closed": closedRun(), "stalled": stalledRun(),
		"hostile": hostileRun(), "large": largeRun(),
	}
}

func formingRun() control.RunStatus {
	waits, idle := waitingRow("node-a", rendezvous.RoleNewcomer), idleRow("node-z")
	waits.Label, waits.Address, waits.NodeRank = "trainer0 pid 4242", "10.0.0.5", 0
	waits.Since, waits.WaitingS, waits.LeaseAgeS = before(31*time.Second), 31, age(1.24)
	idle.Label, idle.Address, idle.LeaseAgeS = "trainer9 pid 1", "fd00::9", age(0.1)
	idle.Reason = "it was dropped from round 3: it did not rejoin within regroup_timeout"
	return control.RunStatus{
		RunStatus: rendezvous.RunStatus{
			RunID: "job7", Phase: rendezvous.PhaseForming, Nodes: rendezvous.NodeRange{Min: 3, Max: 4, Unit: 1}, LeaseTimeoutS: 10,
			Missing:    rendezvous.Missing{Min: 2, Target: 3, Who: "node ranks 1, 2, 3"},
			NotStarted: "1 of at least 3 nodes are here, 2 more needed; no node has come for node rank 1, 2, 3",
		},
		FormingSince: before(31 * time.Second), Waiting: []control.WaitingStatus{waits}, Idle: []control.IdleStatus{idle},
	}
}

func runningRun() control.RunStatus {
	host := memberRow(0, "running")
	host.Host = true
	away := memberRow(2, "running")
	away.Reconnecting, away.LeaseAgeS = true, age(0.8)
	spare := waitingRow("node-d", rendezvous.RoleSpare)
	spare.Label, spare.Address = "trainer3 pid 77", "10.0.0.8"
	spare.Since, spare.WaitingS, spare.LeaseAgeS = before(26*time.Hour), 26*3600, age(2.5)
	return control.RunStatus{
		RunStatus: rendezvous.RunStatus{
			RunID: "a run with a long name that does not fit into its column", Phase: rendezvous.PhaseRunning,
			Nodes: rendezvous.NodeRange{Min: 2, Max: 4, Unit: 1}, Round: 3, RoundStore: "10.0.0.5:41231",
		},
		RoundAt: before(125 * time.Second),
		Members: []control.MemberStatus{host, lost(1, "lost: not heard of for 10s"), away},
		Waiting: []control.WaitingStatus{spare},
		Changes: []control.StatusChange{
			change(25*time.Hour, "round 2 is complete: 4 of 4 nodes, 0 waiting"),
			change(125*time.Second, "round 3 is complete: 3 of 4 nodes, 1 waiting"),
			change(5*time.Second, "node node-b (trainer1 pid 4001) lost: not heard of for 10s; "+
				"this line is long enough that it has to be broken at the width of the screen, behind its time"),
		},
		ChangesTotal: 17,
		Progress: &control.ProgressStatus{Step: 41200, SmallestStep: 41198, SecondsPerStep: 3.1, ChangeAgeS: 40, Nodes: 2,
			Behind: &control.BehindStatus{Rank: 2, Node: "node-c", Label: "trainer2 pid 4002", Steps: 2, ForS: 40.2}},
	}
}

func regroupingRun() control.RunStatus {
	back := memberRow(0, "rejoined")
	waits := waitingRow(back.Node, rendezvous.RoleMember)
	waits.NodeStatus, waits.Since, waits.WaitingS, waits.LeaseAgeS = back.NodeStatus, before(3*time.Second), 3, age(0.3)
	gone := memberOf("")
	gone.Rank, gone.State = 2, "unknown"
	return control.RunStatus{
		RunStatus: rendezvous.RunStatus{
			RunID: "job8", Phase: rendezvous.PhaseRegroup, Nodes: rendezvous.NodeRange{Min: 2, Max: 4, Unit: 1}, Round: 7, RoundStore: "[fd00::5]:41231",
			Missing:    rendezvous.Missing{Min: 1, Target: 3, Who: "node-b of round 7"},
			NotStarted: "it regroups after round 7 and waits at most regroup_timeout (1m30s) for members that have not rejoined: node-b of round 7",
		},
		RoundAt: before(10 * time.Minute), FormingSince: before(3 * time.Second),
		Members: []control.MemberStatus{back, memberRow(1, "running"), gone}, Waiting: []control.WaitingStatus{waits},
	}
}

// at has a member report steps.
func at(m control.MemberStatus, smallest, largest int64) control.MemberStatus {
	m.Progress = &control.NodeProgressStatus{Step: largest, SmallestStep: smallest, Workers: 2, Reporting: 2}
	return m
}

func stalledRun() control.RunStatus {
	return control.RunStatus{
		RunStatus: rendezvous.RunStatus{
			RunID: "job10", Phase: rendezvous.PhaseRunning, State: "stalled", Nodes: rendezvous.NodeRange{Min: 2, Max: 2, Unit: 1}, Round: 1, RoundStore: "10.0.0.5:41231",
		},
		RoundAt: before(2 * time.Hour), Members: []control.MemberStatus{at(memberRow(0, "running"), 41200, 41200), at(memberRow(1, "running"), 41199, 41200)},
		Stalled:  "no step for 65 s: rank 3 (gpu-b) is at train.py:41 load_batch; 7 others wait in all_reduce",
		Progress: &control.ProgressStatus{Step: 41200, SmallestStep: 41199, SecondsPerStep: 0.1, ChangeAgeS: 80, Nodes: 2},
	}
}

func finishingRun() control.RunStatus {
	return control.RunStatus{
		RunStatus: rendezvous.RunStatus{
			RunID: "job9", Phase: rendezvous.PhaseFinishing, Nodes: rendezvous.NodeRange{Min: 2, Max: 2, Unit: 1}, Round: 1, RoundStore: "10.0.0.5:41231",
			Finished: []string{"node-a"},
		},
		RoundAt: before(2 * time.Hour), Members: []control.MemberStatus{memberRow(0, "finished"), memberRow(1, "running")},
		Changes: []control.StatusChange{change(time.Second, "node node-a (trainer0 pid 4000) finished")}, ChangesTotal: 1,
		Progress: &control.ProgressStatus{Step: 1000000, SmallestStep: 1000000, SecondsPerStep: 0.25, ChangeAgeS: 0.1, Nodes: 1},
	}
}

func closedRun() control.RunStatus {
	return control.RunStatus{
		RunStatus: rendezvous.RunStatus{
			RunID: "job10", Phase: rendezvous.PhaseClosed, Nodes: rendezvous.NodeRange{Min: 1, Max: 8, Unit: 1, Target: 4}, Round: 2,
			Closed: &rendezvous.ClosedStatus{How: "failed", By: "node-a (trainer0 pid 4000)", Reason: "exit code 3 of local rank 5", At: before(time.Minute)},
		},
		RoundAt: before(72 * time.Hour),
		Members: []control.MemberStatus{lost(0, "left: exit code 3"), lost(1, "evicted by admin root@ops (10.0.0.1): its GPU is broken")},
		Changes: []control.StatusChange{change(time.Minute, "the run failed by node-a (trainer0 pid 4000): exit code 3")}, ChangesTotal: 1,
	}
}

// hostileRun has texts that a terminal would obey.
func hostileRun() control.RunStatus {
	waits := waitingRow("\x1b]0;title\x07", rendezvous.RoleNewcomer)
	waits.Label, waits.Address = "tab\there\r\n", "\x00"
	return control.RunStatus{
		RunStatus: rendezvous.RunStatus{RunID: "\x1b[31mred\x1b[0m", Phase: rendezvous.PhaseForming, NotStarted: "line\nbreak\x07"},
		Waiting:   []control.WaitingStatus{waits},
		Changes:   []control.StatusChange{change(0, "a\x1b[2Jb\u202e")}, ChangesTotal: 1,
	}
}

func largeRun() control.RunStatus {
	run := control.RunStatus{
		RunStatus: rendezvous.RunStatus{RunID: "large", Phase: rendezvous.PhaseRunning, Nodes: rendezvous.NodeRange{Min: 500, Max: 1000, Unit: 1}, Round: 1, RoundStore: "h:1"},
		RoundAt:   before(time.Hour),
	}
	for rank := range 1000 {
		m := memberOf(fmt.Sprintf("node-%04d-with-a-long-name-too", rank))
		m.Rank, m.Label, m.Address, m.State, m.LeaseAgeS = rank, "pid 1", "10.1.2.3", "running", age(1)
		if rank%300 == 299 {
			m.State, m.Cause, m.LeaseAgeS = "lost", "lost: connection closed", nil
		}
		run.Members = append(run.Members, m)
	}
	return run
}

// withToken is a status whose nodes have proven the first or the second of two tokens, or
// neither.
func withToken(st control.Status) control.Status {
	st.Server.Fingerprints = []string{"1a2b3c4d", "99aabbcc"}
	r := &st.Runs[0]
	r.Members, r.Idle = slices.Clone(r.Members), slices.Clone(r.Idle)
	for i := range r.Members {
		r.Members[i].Alive = r.Members[i].LeaseAgeS != nil
		r.Members[i].Fingerprint = "1a2b3c4d"
	}
	r.Waiting = slices.Clone(r.Waiting)
	for i := range r.Waiting {
		r.Waiting[i].Fingerprint = "99aabbcc"
	}
	x := idleRow("node-x")
	x.Label, x.Address, x.LeaseAgeS = "trainer7 pid 3", "10.0.0.12", age(1)
	r.Idle = append(r.Idle, x)
	return st
}

func sampleStatuses() map[string]control.Status {
	runs := sampleRuns()
	all := map[string]control.Status{"empty": sampleServer()}
	for name, run := range runs {
		all[name] = sampleServer(run)
	}
	several := sampleServer(runs["forming"], runs["running"], runs["regroup"], runs["closed"], runs["hostile"])
	several.RunsTotal = 300
	all["several"] = several
	all["token"] = withToken(sampleServer(runs["running"]))
	return all
}

func TestStatusTable(t *testing.T) {
	term := Terminal{Width: screenWidth, Zone: time.UTC}
	for name, st := range sampleStatuses() {
		t.Run(name, func(t *testing.T) {
			got := Render(st, term)
			path := filepath.Join("testdata", "status", name+".txt")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			for line := range strings.Lines(got) {
				line = strings.TrimSuffix(line, "\n")
				if n := utf8.RuneCountInString(line); n > screenWidth {
					t.Errorf("a line of %d characters: %s", n, line)
				}
				if strings.TrimRight(line, " ") != line {
					t.Errorf("blanks at the end of %q", line)
				}
				if printable.Text(line) != line {
					t.Errorf("a terminal would obey %q", line)
				}
			}
		})
	}
}

// TestStatusTableInColour shows the same text but for colours, in any width.
func TestStatusTableInColour(t *testing.T) {
	codes := regexp.MustCompile(`\x1b\[[0-9]*m`)
	blanks := regexp.MustCompile(` +\n`)
	for name, st := range sampleStatuses() {
		for _, width := range []int{leastWidth, screenWidth, 200} {
			Plain := Render(st, Terminal{Width: width, Zone: time.UTC})
			coloured := Render(st, Terminal{Width: width, Zone: time.UTC, Colour: true})
			if got := blanks.ReplaceAllString(codes.ReplaceAllString(coloured, ""), "\n"); got != Plain {
				t.Errorf("%s, width %d: without its colours it is\n%s\nwant\n%s", name, width, got, Plain)
			}
			if !strings.Contains(coloured, "\x1b[") {
				t.Errorf("%s: no colour", name)
			}
		}
	}
}

func TestAgo(t *testing.T) {
	for seconds, want := range map[float64]string{
		-1: "0.0 s", 0: "0.0 s", 0.29: "0.2 s", 9.99: "9.9 s", 10: "10 s", 119: "119 s", 120: "2 m 00 s", 3725: "62 m 05 s", 7200: "2 h 00 m", 200000: "2 d 7 h",
	} {
		if got := ago(seconds); got != want {
			t.Errorf("%v: %s, want %s", seconds, got, want)
		}
	}
}

// wideNames replaces what has two columns by two letters, so that columns can be counted.
var wideNames = strings.NewReplacer("訓", "xx", "練", "xx", "機", "xx", "한", "xx", "글", "xx", "🚀", "xx", "e\u0301", "x")

// TestStatusTableOfWideNames: CJK characters and emoji have two columns, combining marks
// none, and the columns of the table stay in line.
func TestStatusTableOfWideNames(t *testing.T) {
	st := control.Status{Schema: 1, RunsTotal: 1, Runs: []control.RunStatus{{RunStatus: rendezvous.RunStatus{RunID: "訓練", Phase: rendezvous.PhaseRunning, Round: 1, Nodes: rendezvous.NodeRange{Min: 5, Max: 5}}}}}
	for i, name := range []string{"node-a", "訓練機", "한글", "🚀🚀", "e\u0301te\u0301", strings.Repeat("機", 30)} {
		m := memberRow(i, "running")
		m.Node, m.Label = name, name+" pid 7 "+strings.Repeat("訓", 60)
		st.Runs[0].Members = append(st.Runs[0].Members, m)
	}
	got := Render(st, Terminal{Width: screenWidth, Zone: time.UTC})
	rows, at := 0, -1
	for line := range strings.Lines(got) {
		line = strings.TrimSuffix(wideNames.Replace(line), "\n")
		if n := utf8.RuneCountInString(line); n > screenWidth {
			t.Errorf("a line of %d columns: %s", n, line)
		}
		before, _, ok := strings.Cut(line, "10.0.0.")
		if !ok {
			continue
		}
		rows++
		if n := utf8.RuneCountInString(before); at >= 0 && n != at {
			t.Errorf("an address in column %d, the first in %d", n, at)
		} else {
			at = n
		}
	}
	if rows != 6 {
		t.Errorf("%d rows", rows)
	}
	if t.Failed() {
		t.Log("\n" + got)
	}
}

// TestStatusPipedIsWhole: what is no terminal gets every node, change and word.
func TestStatusPipedIsWhole(t *testing.T) {
	id, text := strings.Repeat("job", 30), strings.Repeat("a long reason ", 40)
	r := control.RunStatus{RunStatus: rendezvous.RunStatus{RunID: id, Phase: rendezvous.PhaseRunning, Round: 1, Nodes: rendezvous.NodeRange{Min: 1, Max: 99}}, ChangesTotal: 30}
	var want []string
	for i := range 60 {
		m := memberRow(i, "running")
		m.Node, m.Label = fmt.Sprintf("%s-%02d", strings.Repeat("node", 15), i), fmt.Sprintf("%s%02d pid 7", strings.Repeat("host", 50), i)
		r.Members = append(r.Members, m)
		r.Finished = append(r.Finished, m.Node+"-done")
		want = append(want, m.Node+" ", m.Label+"\n", m.Node+"-done")
	}
	for i := range 30 {
		c := change(time.Minute, fmt.Sprintf("%s%02d", text, i))
		r.Changes = append(r.Changes, c)
		want = append(want, c.Text+"\n")
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = read.Close(), write.Close() }()
	got := Render(sampleServer(r), TerminalOf(write))
	for _, text := range append(want, "Run "+id+": ") {
		if !strings.Contains(got, text) {
			t.Errorf("%q is missing", text)
		}
	}
	if strings.Contains(got, "…") {
		t.Errorf("cut:\n%s", got)
	}
	r.NotStarted = strings.TrimSpace(text)
	if got := Render(sampleServer(r, r), TerminalOf(write)); strings.Count(got, id) != 2 || strings.Count(got, r.NotStarted) != 2 {
		t.Errorf("two runs:\n%s", got)
	}
	if got := Render(sampleServer(r), Terminal{Width: screenWidth, Zone: time.UTC}); !strings.Contains(got, "… and") {
		t.Errorf("on a terminal:\n%s", got)
	}
}

func TestCutAndPad(t *testing.T) {
	for _, c := range []struct {
		text  string
		width int
		want  string
	}{
		{"訓練機", 6, "訓練機"}, {"訓練機", 5, "訓練…"}, {"訓練機", 4, "訓…"}, {"🚀🚀", 3, "🚀…"}, {"e\u0301te\u0301", 3, "e\u0301te\u0301"}, {"abc", 2, "a…"},
	} {
		if got := cut(c.text, c.width); got != c.want {
			t.Errorf("%q in %d columns: %q, want %q", c.text, c.width, got, c.want)
		}
	}
	if got := pad("訓練", 6) + "|" + pad("訓練", -6) + "|"; got != "訓練  |  訓練|" {
		t.Errorf("%q", got)
	}
}

// TestTokenText: who has proven the token, in each case; what is finished or reconnects is
// not asked for.
func TestTokenText(t *testing.T) {
	term := Terminal{Width: Unlimited, Zone: time.UTC}
	sample := func(fingerprints ...string) control.Status {
		r := control.RunStatus{
			RunStatus: rendezvous.RunStatus{Finished: []string{"done"}},
			Idle:      []control.IdleStatus{idleRow("done")}, Waiting: []control.WaitingStatus{waitingRow("node-0", rendezvous.RoleMember)},
		}
		for i, f := range fingerprints {
			m := memberOf(fmt.Sprintf("node-%d", i))
			m.Alive, m.Fingerprint = true, f
			r.Members = append(r.Members, m)
		}
		away, gone := memberOf("away"), memberOf("gone")
		away.Alive, away.Reconnecting, gone.State = true, true, "lost"
		r.Members = append(r.Members, away, gone)
		st := sampleServer(r)
		st.Server.Fingerprints = []string{"aa", "bb"}
		return st
	}
	for want, st := range map[string]control.Status{
		"":                                    sampleServer(),
		"aa, bb":                              sample(),
		"aa, bb (the one node has proven it)": sample("aa"),
		"aa, bb (all 2 nodes have proven it)": sample("aa", "aa"),
		"aa, bb (all 3 nodes have proven it; by bb: node-1, node-2)": sample("aa", "bb", "bb"),
		"aa, bb (1 of 2 nodes have proven it; not: node-1)":          sample("aa", ""),
	} {
		if got := tokenText(&st, nil, term); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if text := tokenText(&control.Status{Place: "file:///d"}, nil, term); text != "" {
		t.Errorf("without a server: %q", text)
	}
}

func TestRefusedText(t *testing.T) {
	st := sampleServer()
	if text := refusedText(st.Server) + refusedText(nil); text != "" {
		t.Errorf("nothing was refused: %q", text)
	}
	st.Server.Refused = map[string]uint64{"tls": 1, "authentication": 12}
	st.Server.StoresRefused = map[string]uint64{"Plain": 3}
	st.Server.ForwardersRefused = map[string]uint64{"other_user": 2}
	const want = "12 authentication, 1 tls, 3 Plain at its node's round store, 2 other_user by its node's forwarder"
	if text := refusedText(st.Server); text != want {
		t.Errorf("%q, want %q", text, want)
	}
	if got := Render(st, Terminal{Width: 200, Zone: time.UTC}); !strings.Contains(got, "\nRefused: "+want+"\n") {
		t.Errorf("the status is:\n%s", got)
	}
}

// TestBelowTheMaximum: a round that has lost nodes is not shown as whole.
func TestBelowTheMaximum(t *testing.T) {
	r := sampleRuns()["finishing"]
	r.Phase, r.State, r.Nodes = rendezvous.PhaseRunning, "running", rendezvous.NodeRange{Min: 2, Max: 40}
	if text := Plainly(sampleServer(r)); strings.Contains(text, "below") {
		t.Error(text)
	}
	r.Below = rendezvous.Below{Nodes: 2, Who: "gpu-7, gpu-9"}
	if text := Plainly(sampleServer(r)); !strings.Contains(text, "\nMissing: 2 below the maximum: gpu-7, gpu-9\n") {
		t.Error(text)
	}
	if _, style := shownState(&r); style != yellow {
		t.Errorf("its style is %v", style)
	}
	r.Nodes.Target = 4
	if text := Plainly(sampleServer(r)); !strings.Contains(text, "2 below the target: gpu-7, gpu-9") {
		t.Error(text)
	}
}

// TestRunWithoutAnID: the id none does not read as "no run".
func TestRunWithoutAnID(t *testing.T) {
	r := sampleRuns()["forming"]
	r.RunID = "none"
	if text := Plainly(sampleServer(r)); !strings.Contains(text, "\nRun \"none\": forming, ") {
		t.Error(text)
	}
}

// TestHostileServer: whatever a server puts into a status, nothing of it reaches a terminal that would obey it.
func TestHostileServer(t *testing.T) {
	const evil = "a\x1b[31m\u009b2Jb"
	var fill func(v reflect.Value)
	fill = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.String:
			v.SetString(evil)
		case reflect.Pointer:
			if v.Set(reflect.New(v.Type().Elem())); v.Type().Elem() != reflect.TypeFor[time.Time]() {
				fill(v.Elem())
			}
		case reflect.Struct:
			for i := range v.NumField() {
				if v.Type() != reflect.TypeFor[time.Time]() {
					fill(v.Field(i))
				}
			}
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0))
		case reflect.Map:
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(key)
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(key, value)
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int, reflect.Int64:
			v.SetInt(1)
		case reflect.Uint64:
			v.SetUint(1)
		}
	}
	for name, change := range map[string]func(st *control.Status){
		"everything": func(*control.Status) {},
		"no end":     func(st *control.Status) { st.Runs[0].Closed, st.Runs[0].Stopping = nil, "" },
		"a member":   func(st *control.Status) { st.Runs[0].Waiting = nil },
		"a host": func(st *control.Status) {
			st.Server.Succession.Peers, st.Server.Succession.Role = nil, control.RoleHosting
		},
		"a leader":           func(st *control.Status) { st.Server.Succession.Role = control.RoleHosting },
		"a server, no place": func(st *control.Status) { st.Place, st.Server.Succession.Missing = "", "" },
		"several runs":       func(st *control.Status) { st.RunsTotal = 2 },
	} {
		var st control.Status
		fill(reflect.ValueOf(&st).Elem())
		change(&st)
		for _, width := range []int{Unlimited, 100} {
			if text := Render(st, Terminal{Width: width, Zone: time.UTC}); strings.ContainsAny(text, "\x1b\u009b") {
				t.Errorf("%s: %q", name, text)
			}
		}
	}
}
