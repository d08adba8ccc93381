package main

import (
	"testing"

	"rallypoint/agent"
	"rallypoint/core/params"
)

// TestHealthPortUsers: who allow_uid= lets in may ask the health port of a program's agent, too.
func TestHealthPortUsers(t *testing.T) {
	p := params.Default()
	if _, err := p.SetOptions(map[string]string{"allow_uid": "7"}); err != nil {
		t.Fatal(err)
	}
	var spec agent.Spec
	meetBy(&spec, p)
	if !spec.LoopbackUsers.Includes(7) || spec.LoopbackUsers.Includes(8) {
		t.Errorf("%+v", spec.LoopbackUsers)
	}
}
