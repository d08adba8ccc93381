package backend

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	"rallypoint/agent/logs"
	"rallypoint/agent/stacks"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/internal/testkit"
	"rallypoint/tcpstore"
)

// TestStacksInEachPlace: wherever nodes meet, a user with the job's rights learns where its workers
// are, and what they wrote, and changes nothing of the run; a stranger learns nothing.
func TestStacksInEachPlace(t *testing.T) {
	for _, m := range meetings {
		if m.name == "blob" || m.name == "remote file" { // no endpoint names them
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			r, j := &run{t, m.place(t)}, newJob(t)
			j.dial, j.to = tcpstore.Connect, testkit.Must(logs.ParseStreamSpec("2"))(t)
			var p params.Params
			for _, node := range r.nodes(2, 2, 2) {
				p = node.Params()
				j.start(node, 0, `echo "err of $RANK" >&2; `+stopped)
			}
			j.want("0.0 up 0", "0.1 up 0", "1.0 up 0", "1.1 up 0")
			if m.name == "etcd" { // a node's parameters are without the options
				p.Endpoint += "?key_prefix=" + url.QueryEscape("/"+t.Name())
			}
			a := Admin{At: testkit.Must(Locate(p.Endpoint))(t), RunID: p.RunID, Timeout: patience}
			if p.TokenFile != "" {
				a.Token = testkit.Must(secret.OpenToken(p.TokenFile, nil))(t)
			}
			ctx := testkit.Within(t, patience)
			before := testkit.Must(a.Status(ctx))(t)
			for range 2 {
				s := testkit.Must(a.Stacks(ctx))(t)
				if s.Round != 1 || s.Nodes != 2 || s.Ranks != 4 || len(s.Silent) != 0 || s.Groups[0].Source != stacks.SourceKernel || len(s.Suspects) != 0 {
					t.Errorf("%+v", s)
				}
				for rank, w := range s.Workers {
					if w.Rank != rank || w.Pid <= 1 || w.Node != before.Members[rank/2].Node || w.Host == "" || w.State == "" || w.Step != nil {
						t.Errorf("worker %d: %+v", rank, w)
					}
				}
				if len(s.Workers) != 4 {
					t.Errorf("%d workers", len(s.Workers))
				}
			}
			testkit.Eventually(t, "what a worker wrote is told", func() bool {
				l := testkit.Must(a.Logs(ctx, 3))(t)
				return l.Round == 1 && slices.ContainsFunc(l.Streams, func(s LogStream) bool {
					return s.Node == before.Members[1].Node && s.Host != "" && strings.Contains(s.Text, "err of 3\n")
				})
			})
			after := testkit.Must(a.Status(ctx))(t)
			if after.Phase != before.Phase || after.ChangesTotal != before.ChangesTotal || len(after.Directives) != 0 || before.RoundStore == "" {
				t.Errorf("%+v, before %+v", after, before)
			}
			if p.TokenFile != "" {
				a.Token = testkit.Must(secret.OpenToken(testkit.TokenFile(t), nil))(t)
				if s, err := AskStacks(ctx, after, a.Token); !errors.Is(err, rendezvous.ErrAuth) {
					t.Errorf("with another token: %+v, %v", s, err)
				}
				if l, err := AskLogs(ctx, after, a.Token, LogsAll); !errors.Is(err, rendezvous.ErrAuth) {
					t.Errorf("with another token: %+v, %v", l, err)
				}
			}
			after.RunID = "other"
			after.RoundStore = ""
			if _, err := AskStacks(ctx, after, nil); !errors.Is(err, rendezvous.ErrInvalid) || !strings.Contains(err.Error(), "is not known") {
				t.Error(err)
			}
		})
	}
}
