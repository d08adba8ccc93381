package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
)

// TestLeavesAsUnfit: by how many failures a node asks to leave, and what follows from the answer.
// Each worker fails until there is no restart left.
func TestLeavesAsUnfit(t *testing.T) {
	refused := rendezvous.Errorf(rendezvous.CodeInvalid, "2 would be left, at least 3 are needed")
	accept := func(*announcing, int) error { return nil }
	for name, c := range map[string]struct {
		rule   LeaveRule
		answer func(r *announcing, nth int) error // to the nth announcement
		asks   string                             // of the announcements, in order: y for one that asks
		unfit  bool
		log    string
	}{
		"restart":      {LeaveRule{}, accept, "nnnn", false, "no restarts left"},
		"at the first": {LeaveRule{1, time.Hour}, accept, "y", true, "this node leaves the run and is kept out for 1h0m0s: its workers were the first to fail, 1 time in that time"},
		"at the third": {LeaveRule{3, time.Hour}, accept, "nny", true, "3 times in that time"},
		"refused":      {LeaveRule{2, time.Hour}, func(*announcing, int) error { return refused }, "nyyy", false, "this node stays in the run: 2 would be left"},
		"later":        {LeaveRule{1, time.Hour}, func(_ *announcing, nth int) error { return map[bool]error{true: refused}[nth == 1] }, "yy", true, "this node stays"},
		"another was first each time": {LeaveRule{2, time.Hour}, func(r *announcing, nth int) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.stop = rendezvous.RoundStop{Round: r.round, Rank: 1}
			return nil
		}, "nnnn", false, "no restarts left"},
		"a node was lost": {LeaveRule{2, time.Hour}, func(r *announcing, nth int) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.stop = rendezvous.RoundStop{Round: r.round, Lost: true}
			return nil
		}, "nnnn", false, "no restarts left"},
		"long ago": {LeaveRule{2, 5 * time.Minute}, accept, "nnnn", false, "no restarts left"},
		"late answer": {LeaveRule{1, time.Hour}, func(r *announcing, nth int) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.refusal = rendezvous.Errorf(rendezvous.CodeUnfit, "it left as unfit")
			return context.DeadlineExceeded
		}, "y", true, "could not be told yet"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHarness(t, 1, "exit 13")
			s.spec.MaxRestarts, s.spec.Leave = 3, c.rule
			r := newAnnouncing(3)
			var asks strings.Builder
			r.asked = func(stop rendezvous.AnnounceStop) error {
				asks.WriteString(map[bool]string{true: "y", false: "n"}[stop.Away > 0])
				if stop.Away > 0 && stop.Away != c.rule.Window || strings.Contains(stop.Reason, "restart") == (stop.Away > 0) && asks.Len() <= 3 {
					t.Errorf("it announces %+v", stop)
				}
				return c.answer(r, asks.Len())
			}
			r.use(t, s)
			log := new(logText)
			s.agent.log = slog.New(slog.NewTextHandler(log, nil))
			clock := time.Now()
			s.agent.leaving.now = func() time.Time { clock = clock.Add(10 * time.Minute); return clock }
			err := s.agent.Run(t.Context())
			var failed *FailedError
			if !errors.As(err, &failed) || failed.Unfit != c.unfit || asks.String() != c.asks || !strings.Contains(log.String()+err.Error(), c.log) {
				t.Errorf("it asked %s and ended with %+v; want %s, unfit %v; the log has\n%s", &asks, err, c.asks, c.unfit, log)
			}
			if want := map[bool]rendezvous.Ending{true: rendezvous.EndLeave, false: rendezvous.EndFailed}[c.unfit]; s.rdzv.ending != want {
				t.Errorf("it ended by %v, want %v", s.rdzv.ending, want)
			}
		})
	}
}

// TestLeaveRuleIsChecked: what no control plane would grant is refused.
func TestLeaveRuleIsChecked(t *testing.T) {
	for _, rule := range []LeaveRule{{-1, time.Hour}, {1, 0}, {1, rendezvous.MaxWithin + 1}} {
		s := newHarness(t, 1, "true")
		s.spec.Leave = rule
		if _, err := New(s.spec, "", s.rdzv, discard()); err == nil || !strings.Contains(err.Error(), "a node leaves after") {
			t.Errorf("%+v: %v", rule, err)
		}
	}
	s := newHarness(t, 1, "true")
	s.spec.Leave, s.spec.Keep = DefaultLeaveRule, true
	if _, err := New(s.spec, "", s.rdzv, discard()); err == nil || !strings.Contains(err.Error(), "both keep the others and leave") {
		t.Errorf("both: %v", err)
	}
}
