package descriptors

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

func TestShortage(t *testing.T) {
	var old unix.Rlimit
	testkit.Check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	testkit.Check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 300, Max: old.Max}))
	defer func() { testkit.Check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }()
	if Limit() != 300 {
		t.Errorf("the limit is %d", Limit())
	}
	if text := Shortage("the store", 300-Spare); text != "" {
		t.Error(text)
	}
	want := "the store will have 237 connections, and this process may have 300 descriptors, 64 of them for other things: " +
		"set LimitNOFILE or `ulimit -Hn` to at least 301 where it is started"
	if text := Shortage("the store", 300-Spare+1); text != want {
		t.Error(text)
	}
}

func TestOpen(t *testing.T) {
	before := Open()
	for range 10 {
		defer testkit.Must(os.Open(os.DevNull))(t).Close()
	}
	if now := Open(); before < 3 || now != before+10 {
		t.Errorf("%d are open, then %d", before, now)
	}
}
