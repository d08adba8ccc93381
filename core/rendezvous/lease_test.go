package rendezvous

import (
	"testing"
	"time"
)

func TestLeases(t *testing.T) {
	const lease = 10 * time.Second
	for name, x := range map[string]struct {
		look LeaseLook
		want LeaseVerdict
	}{
		"just heard":                        {LeaseLook{}, LeaseHolds},
		"heard exactly a lease ago":         {LeaseLook{Silence: lease}, LeaseHolds},
		"heard after a silence":             {LeaseLook{Silence: time.Second, Suspect: true}, LeaseHolds},
		"silent":                            {LeaseLook{Silence: lease + 1}, LeaseSuspected},
		"silent at two looks":               {LeaseLook{Silence: lease + 1, Suspect: true}, LeaseOver},
		"silent, but bytes are there":       {LeaseLook{Silence: lease + 1, Unread: true}, LeaseUndecided},
		"silent twice, but bytes are there": {LeaseLook{Silence: 2 * lease, Unread: true, Suspect: true}, LeaseUndecided},
		"silent, and nobody could look":     {LeaseLook{Silence: time.Hour, Suspect: true, Renew: true}, LeaseRenewed},
		"a sign of life":                    {LeaseLook{Silence: time.Second, Renew: true}, LeaseRenewed},
	} {
		if got := x.look.Judge(lease); got != x.want {
			t.Errorf("%s: %+v is judged %d, want %d", name, x.look, got, x.want)
		}
	}
}
