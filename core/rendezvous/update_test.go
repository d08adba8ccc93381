package rendezvous

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestEqualUpdates: updates that differ in any one field are not equal, since a control plane
// sends the same bytes for those that are.
func TestEqualUpdates(t *testing.T) {
	var same, other MembershipUpdate
	if !same.Equal(&other) {
		t.Fatal("what says nothing is not equal")
	}
	fields := 0
	eachField(t, reflect.ValueOf(&other).Elem(), "update", func(name string) {
		fields++
		if same.Equal(&other) || other.Equal(&same) {
			t.Errorf("what differs in %s is equal", name)
		}
	})
	if fields < 20 {
		t.Errorf("an update has %d fields", fields)
	}
}

// eachField calls do with each field set to something, one at a time.
func eachField(t *testing.T, v reflect.Value, name string, do func(name string)) {
	zero := reflect.Zero(v.Type())
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Unix(1, 0)))
	case DirectiveFacts: // its Seq tells all of it
		v.FieldByName("Seq").SetUint(1)
	default:
		switch {
		case v.Kind() == reflect.Struct:
			for i := range v.NumField() {
				eachField(t, v.Field(i), name+"."+v.Type().Field(i).Name, do)
			}
			return
		case v.Kind() == reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		case v.Kind() == reflect.String:
			v.SetString("x")
		case v.Kind() == reflect.Bool:
			v.SetBool(true)
		case v.CanInt():
			v.SetInt(1)
		case v.CanUint():
			v.SetUint(1)
		default:
			t.Fatalf("%s is a %v", name, v.Type())
		}
	}
	do(name)
	v.Set(zero)
}

// TestWaitingNames counts those that wait, also the ones whose connection broke a moment ago.
func TestWaitingNames(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 1)
	r.group(p, "member")
	for i := range maxNames + 2 {
		n := r.hello(fmt.Sprint("spare", i), p)
		r.join(n)
		if i < 3 {
			r.apply(Disconnect{Session: n.session})
		}
	}
	if got := r.m.forming.waitingNames(); strings.Count(got, "spare") != maxNames || !strings.HasSuffix(got, ", and 2 more") {
		t.Error(got)
	}
}
