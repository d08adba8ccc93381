package backend

import (
	"context"

	"rallypoint/agent"
	"rallypoint/core/member"
	"rallypoint/core/params"
)

// Node is a node's rendezvous, for an agent and for programs that are agents themselves.
// *member.Member documents the methods.
type Node interface {
	agent.Rendezvous
	Params() params.Params
	SetClosed(ctx context.Context, reason string) error
	Close() error
}

var _ Node = (*member.Member)(nil)

// Name is the name of the backend that an endpoint chooses, for events.
func Name(endpoint string) string {
	if scheme(endpoint) == SchemeStatic {
		return SchemeStatic
	}
	return nameAny
}
