package etcdclient

import "testing"

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t testing.TB, have, want T) {
	t.Helper()
	if have != want {
		t.Fatalf("have %v, want %v", have, want)
	}
}
