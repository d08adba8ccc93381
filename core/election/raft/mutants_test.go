//go:build long

package raft

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mutants are mistakes around raft that the simulator has to find, or, where what they break is too rare in it, a
// test of the rule: each has parts of the sources replaced.
var mutants = []struct {
	name    string
	replace []string // old, new, …
	test    string   // "": the simulator
}{
	{"a leader that was not heard speaks", []string{
		"now-n.majorityAt <= n.lease/majorityParts", "now-n.majorityAt <= 3*n.lease",
	}, ""},
	{"an answer is as new as its arrival", []string{
		"n.majorityAt = max(n.majorityAt, n.asked[at])", "n.majorityAt = n.asked[len(n.asked)-1]",
		"n.asked, n.first = n.asked[at+1:], number+1", "_ = at",
	}, ""},
	{"a leader confirms what another has begun", []string{
		"commit >= n.since", "true",
	}, ""},
	{"the leader's end elects nobody at once", []string{
		"n.do(now, n.raw.ForgetLeader)", "_ = now",
	}, "TestKillsOnly"},
	{"a campaign waits for the time-out", []string{
		"return errors.Join(n.raw.ForgetLeader(), n.raw.Campaign())", "return nil",
	}, "TestKillsOnly"},
	{"the founder alone still elects while it adds voters", []string{
		"len(l.conf.GetVotersOutgoing()) == 1", "false",
	}, "TestFounderDiesAddingVoters"},
	{"a message of another cluster counts", []string{
		"n.lost || n.cluster != \"\" && n.cluster != m.Cluster", "n.lost",
	}, "TestClusters"},
	{"a snapshot that was lost is not sent again", []string{
		"ticks >= patience", "ticks > 1<<30+patience",
	}, "TestLostSnapshot"},
	{"a process that is added late is not in the snapshot", []string{
		"return snapshot(l.applied, l.term, l.conf, value), err", "_ = value; return l.MemoryStorage.Snapshot()",
	}, ""},
	{"a leader that hands on proposes", []string{
		"!n.leads() || n.transferring {", "!n.leads() {",
	}, "TestTransfer"},
	{"voters are forgotten that are proven dead", []string{
		"delete(n.dead, m.From)", "_ = m.From",
	}, "TestProofIsWithdrawn"},
	{"a voter that was removed is not told", []string{
		"n.inform(said)", "_ = said",
	}, "TestRemovedUnheard"},
	{"one process ends term after term", []string{
		"now-n.forced < n.lease/majorityParts", "now-n.forced < 0",
	}, "TestOneEndsNoTerms"},
}

// TestMutants tries the simulator on a copy of the package with each mistake.
func TestMutants(t *testing.T) {
	sources := map[string]string{}
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sources[name] = string(text)
	}
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			dir, err := os.MkdirTemp(".", "mutant") // in this module, which has raft
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			changed := 0
			for name, text := range sources {
				for i := 0; i < len(m.replace); i += 2 {
					if !strings.HasSuffix(name, "_test.go") && strings.Count(text, m.replace[i]) == 1 {
						text = strings.Replace(text, m.replace[i], m.replace[i+1], 1)
						changed++
					}
				}
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if changed != len(m.replace)/2 {
				t.Fatalf("%d of %d parts were found", changed, len(m.replace)/2)
			}
			test, sign := "TestHistories", ": seed "
			if m.test != "" {
				test, sign = m.test, "--- FAIL: "+m.test
			}
			cmd := exec.Command("go", "test", "-vet=off", "-run", "^"+test+"$", "-timeout", "20m", ".")
			cmd.Dir = dir
			cmd.Env = append([]string{"RALLYPOINT_HISTORIES=10000"}, os.Environ()...)
			out, err := cmd.CombinedOutput()
			_, found, _ := bytes.Cut(out, []byte(sign))
			if err == nil || len(found) == 0 {
				t.Fatalf("%s does not find it: %v\n%s", test, err, out)
			}
			line, _, _ := bytes.Cut(found, []byte("\n"))
			t.Logf("%s%s", sign, line)
		})
	}
}
