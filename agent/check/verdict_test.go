package check

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		code   int
		output string
		want   Verdict
	}{
		{0, "", Verdict{State: Fit}},
		{0, "all well\n", Verdict{State: Fit, Text: "all well"}},
		{1, "", Verdict{State: Unfit, Reason: "probe"}},
		{1, "noise\n{\"reason\": \"gpu_xid\", \"text\": \"Xid 79\"}\n\n", Verdict{State: Unfit, Reason: "gpu_xid", Text: "Xid 79"}},
		{1, `{"text": "no reason"}`, Verdict{State: Unfit, Reason: "probe", Text: "no reason"}},
		{1, `{"reason": "GPU fault"}`, Verdict{State: Unfit, Reason: "other", Text: ""}},
		{1, `{"reason": 7}`, Verdict{State: Unfit, Reason: "probe", Text: `{"reason": 7}`}},
		{1, "one\ntwo\n", Verdict{State: Unfit, Reason: "probe", Text: "two"}},
		{75, "", Verdict{Text: "it exited with code 75"}},
		{127, "", Verdict{Text: "it exited with code 127", NotRun: true}},
		{2, "usage", Verdict{Text: "usage"}},
		{-9, "", Verdict{Text: "it was ended by SIGKILL"}},
	} {
		if got := Judge(c.code, []byte(c.output), "probe"); got != c.want {
			t.Errorf("%v %q: %+v, want %+v", c.code, c.output, got, c.want)
		}
	}
}

// FuzzJudge holds that no output makes a verdict long, unprintable or of another state.
func FuzzJudge(f *testing.F) {
	f.Add([]byte("\x1b[2J\xff\x00"))
	f.Add([]byte(strings.Repeat("é", 1000)))
	f.Add([]byte(`{"reason": "x", "text": "\u001b[2J\n"}`))
	f.Fuzz(func(t *testing.T, output []byte) {
		v := Judge(1, output, "Probe.sh")
		if v.State != Unfit || !validReason(v.Reason) || len(v.Text) > maxText || !utf8.ValidString(v.Text) || strings.ContainsAny(v.Text, "\x00\x1b\n\r") {
			t.Errorf("%q: %+v", output, v)
		}
	})
}
