package wire

import (
	"reflect"
	"testing"
	"time"

	"rallypoint/core/rendezvous"
)

// TestAdminCarriesEvents: the server applies what an administrator asks for; only who asks and
// when are its own words.
func TestAdminCarriesEvents(t *testing.T) {
	at := time.Unix(1700000000, 5).UTC()
	events := []rendezvous.Event{
		rendezvous.CloseRun{By: "carol", Reason: "why", Stop: true},
		rendezvous.Evict{Node: "n", By: "carol", Reason: "why"},
		rendezvous.CancelDirective{ID: "d", By: "carol", Reason: "why"},
		rendezvous.Undrain{Node: "n", By: "carol", Reason: "why"}, rendezvous.Cordon{Node: "n", For: time.Hour, By: "carol", Reason: "why"}, rendezvous.Forget{By: "carol", Reason: "why"},
	}
	for kind := rendezvous.DirectiveSave; kind <= rendezvous.DirectiveStop; kind++ {
		events = append(events, rendezvous.Direct{
			ID: "d", Kind: kind, Nodes: []string{"n", "m"}, Within: 2, For: 3, Target: 4, By: "carol", Reason: "why",
		})
	}
	for _, ev := range events {
		f, ok := NewAdmin("run", ev)
		if !ok || f.RunID != "run" || f.By != "carol" {
			t.Errorf("the request for %+v: %+v, %v", ev, f, ok)
		}
		got := f.Event("admin carol", at)
		want := reflect.New(reflect.TypeOf(ev)).Elem()
		want.Set(reflect.ValueOf(ev))
		want.FieldByName("By").SetString("admin carol")
		if f := want.FieldByName("At"); f.IsValid() {
			f.Set(reflect.ValueOf(at))
		}
		if !reflect.DeepEqual(got, want.Interface()) {
			t.Errorf("it stands for %+v, want %+v", got, want)
		}
	}
	for _, ev := range []rendezvous.Event{nil, rendezvous.Join{}, rendezvous.Direct{Kind: rendezvous.DirectiveStop + 1}} {
		if f, ok := NewAdmin("run", ev); ok {
			t.Errorf("%#v is asked for by %+v", ev, f)
		}
	}
	if got := (Admin{Op: 99}).Event("x", at); got != nil {
		t.Errorf("an unknown request stands for %+v", got)
	}
}
