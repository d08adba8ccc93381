package params

import (
	"testing"

	"rallypoint/core/rendezvous"
)

// TestSecurityWarningIsShort: it stands in the log of each node of each job without a token.
func TestSecurityWarningIsShort(t *testing.T) {
	for _, p := range []Params{{Endpoint: "host0:29400"}, {Endpoint: "host0:29400", TokenFile: "token", PlainStore: true}} {
		p.Policy = rendezvous.Policy{Max: 2}
		for _, hosted := range []bool{false, true} {
			if warning, err := p.CheckSecurity("host0:29400", hosted); err != nil || warning == "" || len(warning) > 100 {
				t.Errorf("%d bytes: %q, %v", len(warning), warning, err)
			}
		}
	}
}
