package static

import (
	"context"

	"rallypoint/core/rendezvous"
)

// Direct refuses a directive: the nodes of a static job are fixed, and it has no control
// plane, so that none can leave it and nothing agrees on a step.
func (s *Static) Direct(_ context.Context, d rendezvous.Direct) error {
	return refuseDirective(s.p.RunID, d)
}

func refuseDirective(run string, d rendezvous.Direct) error {
	return rendezvous.Errorf(rendezvous.CodeInvalid, "run %q: there is no %v here: its nodes are known beforehand (--rdzv-backend=static), "+
		"and no control plane is there that could carry it out; meet at HOST:PORT, file:///DIR or etcd://HOST for that", run, d.Kind)
}
