package wake

import "testing"

func TestSignalIsSetOnce(t *testing.T) {
	s := New()
	s.Set()
	s.Set()
	<-s
	select {
	case <-s:
		t.Error("two sets woke twice")
	default:
	}
	s.Set()
	<-s
}
