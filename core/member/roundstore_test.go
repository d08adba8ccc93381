package member

import (
	"testing"

	"rallypoint/core/params"
	"rallypoint/internal/testkit"
)

func TestStoreHost(t *testing.T) {
	for _, c := range []struct {
		name             string
		endpoint         string
		max              int
		advertise, local string
		seen             string
		announce, listen string
	}{
		{"as seen", "host0", 2, "", "", "10.0.0.7", "", "10.0.0.7"},
		{"advertised", "host0", 2, "pub", "10.0.0.8", "10.0.0.7", "pub", "pub"},
		{"local_addr", "host0", 2, "", "10.0.0.8", "10.0.0.7", "10.0.0.8", "10.0.0.8"},
		{"beside the control plane", "host0", 2, "", "", "127.0.0.1", "", ""},
		{"beside it, by its address", "127.0.0.1:1", 2, "", "", "127.0.0.1", "", "127.0.0.1"},
		{"beside it, by the name of all machines", "LocalHost.:1", 2, "", "", "::1", "", "::1"},
		{"beside it, alone", "host0", 1, "", "", "127.0.0.1", "", "127.0.0.1"},
		{"unknown", "host0", 2, "", "", "", "", ""},
	} {
		p := params.Default()
		p.Servers, p.Max, p.AdvertiseAddr, p.LocalAddr = testkit.Must(params.ParseServers(c.endpoint, params.DefaultPort))(t), c.max, c.advertise, c.local
		announce, listen := storeHost(&p, c.seen)
		if announce != c.announce || listen != c.listen {
			t.Errorf("%s: announce %q, listen on %q; want %q, %q", c.name, announce, listen, c.announce, c.listen)
		}
	}
}
