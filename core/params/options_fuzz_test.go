package params_test

import (
	"errors"
	"reflect"
	"testing"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
)

// FuzzOption sets an option to any value: it is taken, warned of or refused, and
// parameters that are refused stay as they were.
func FuzzOption(f *testing.F) {
	for _, option := range [][2]string{
		{"join_timeout", "0.5"}, {"lease_timeout", "1e-9"}, {"keep_alive_interval", "1e18"}, {"keep_alive_max_attempt", "9999999999"},
		{"is_host", "yes"}, {"node_rank", "-1"}, {"store_port", "65536"}, {"advertise_addr", "[::]"}, {"token_file", "/x"}, {"allow_uid", "1:2-3"}, {"lease_timout", "1"},
	} {
		f.Add(option[0], option[1])
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		p := params.Default()
		p.RunID, p.Min, p.Max = "job", 1, 4
		before := p
		warnings, err := p.SetOptions(map[string]string{name: value})
		switch {
		case err != nil && !errors.Is(err, rendezvous.ErrInvalid):
			t.Errorf("%v", err)
		case err != nil && !reflect.DeepEqual(p, before):
			t.Error("refused, but changed")
		case len(warnings) > 0 && !reflect.DeepEqual(p, before):
			t.Error("unknown, but changed")
		case err == nil:
			_ = p.Validate()
		}
	})
}
