//go:build long

package succession

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mutants are mistakes in the vote that the simulator has to find, or, where what they break is
// too rare in it, a test of the rule: each has parts of the sources replaced.
var mutants = []struct {
	name    string
	replace []string // old, new, …
	test    string   // "": the simulator
}{
	{"a vote does not restart the clock", []string{
		"b.granted, b.waits, b.voted, b.ended = m.From, now, now, false", "b.granted = m.From",
	}, ""},
	{"two votes in one term", []string{
		`(b.granted == "" || b.granted == m.From)`, "true", "!(free && b.granted == m.From)", "!free",
	}, ""},
	{"a vote for an older entry", []string{
		"b.accepted.after(theirs), hears", "false, hears",
		"case b.outsider(m.From, now):", "case theirs.Number == maxNumber+1, b.outsider(m.From, now):",
	}, ""},
	{"an answer of an older term counts", []string{
		"b.role == leader && m.Term == b.promised && m.Number", "b.role == leader && m.Number",
	}, "TestOldAnswers"},
	{"the word of a host whose term is over counts", []string{
		"if m.Term < b.promised {", "if m.Term+2 < b.promised {",
	}, ""},
	{"voters change without the old majority", []string{
		"\tif v.changing() {\n\t\tleast", "\tif false {\n\t\tleast",
	}, ""},
	{"the second entry of a change does not wait for the first", []string{
		"case b.role != leader || b.hands != \"\" || b.settled < b.since:", "case b.role != leader:",
	}, ""},
	{"a silent voter need not agree", []string{
		"return b.dead[id] && (b.least == 2", "return b.role == leader && b.peers[id].heard < b.ticked-b.lease || b.dead[id] && (b.least == 2",
	}, ""},
	{"proof makes a majority", []string{
		"(b.least == 2 || b.least > 0 && b.role == leader)", "true",
	}, ""},
	{"proof elects alone", []string{
		"return b.accepted.Voters.agreed(granted, excused) > 0", "return b.accepted.Voters.agreed(granted, b.ProvenDead) > 0",
	}, ""},
	{"proof confirms", []string{
		"(b.least == 2 || b.least > 0 && b.role == leader)", "true",
	}, "TestRejected"},
	{"the dead stay dead", []string{
		"delete(b.dead, m.From)", "_ = m.From",
	}, "TestRejected"},
	{"the host's end elects nobody at once", []string{
		"now-b.waits < b.lease*2/5 && !b.ended", "now-b.waits < b.lease*2/5",
	}, "TestKillsOnly"},
	{"one that votes no more is not told so", []string{
		"b.former[id] = true", "_ = id",
	}, "TestKills"},
	{"a minority is not stranded", []string{
		"b.accepted.Voters.agreed(living, nobody) == 0", "b.accepted.Voters.agreed(living, nobody) == 9",
	}, "TestRejected"},
	{"an answer is as new as its arrival", []string{
		"max(p.sure, min(m.Echo, now))", "now",
	}, ""},
	{"a host confirms what it has not written", []string{
		"b.since = b.accepted.Number + 1\n\tb.write(b.accepted, now)", "b.since = b.accepted.Number\n\tb.accepted.Term = b.promised\n\tb.peers[b.id] = peer{reached: b.since}",
		"if b.accepted.Term == m.Term {", "if true {",
	}, "TestKills"},
	{"a host does not yield to a later term", []string{
		"(now-b.began < b.lease/deposeParts || b.alone())", "true",
	}, ""},
	{"a memory that is empty counts at once", []string{
		"return b.least > 0 && now-b.born <", "return false && now-b.born <",
	}, "TestYoungVoter"},
	{"a voter leaves a host of a list that has a majority", []string{
		"m.Term > b.promised && (b.keeps(m.From, now) || ", "m.Term > b.promised && (",
	}, listTest},
	{"a voter leaves a host of a list that counts its answer", []string{
		"return now-b.heard < b.lease/deposeParts // what", "return false // what",
	}, "TestAnswerKeepsAHost"},
	{"the dead make a majority of a list", []string{
		"n := reachedBy(v.Incoming, reached, b.least)", "n := agreedIn(v.Incoming, reached, b.excused)",
	}, listTest},
	{"the dead of a list of five need not agree", []string{
		"b.least > 0 && b.role == leader", "b.least > 0",
	}, "TestDeadOfALongerList"},
	{"a few of a list found a group", []string{
		"len(voters) < b.least || ", "",
		"need := max(len(set)/2+1, least)", "need := len(set)/2 + 1",
	}, listTest},
}

const listTest = "TestHistoriesOfAList"

// TestMutants tries the simulator on a copy of the package with each mistake.
func TestMutants(t *testing.T) {
	sources := map[string]string{"go.mod": "module mutant\n\ngo 1.24\n", "lease_test.go": "package succession\n\nconst lease = simLease\n"}
	for _, name := range []string{"ballot.go", "proof.go", "voters.go", "standbys.go", "sim_test.go", "list_sim_test.go", "list_test.go", "ballot_test.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sources[name] = string(text)
	}
	for _, m := range mutants {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			dir := t.TempDir()
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
			cmd.Env = append([]string{"RALLYPOINT_HISTORIES=20000"}, os.Environ()...)
			cmd.Env = append(cmd.Env, "GOFLAGS=-mod=mod", "GOWORK=off")
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
