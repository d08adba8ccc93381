package fence

import (
	"strings"
	"testing"
	"time"
)

func TestRecord(t *testing.T) {
	written := record{
		Version: newVersion(), Previous: newVersion(),
		Writer: Writer{Run: "job7", Generation: "G", Round: 3, Machine: "gpu-a", PID: 12, Time: time.Unix(1_800_000_000, 0).UTC()},
	}
	read, err := decode(written.encode())
	if err != nil || read != written {
		t.Fatalf("%+v became %+v, %v", written, read, err)
	}
	want := `run "job7", generation G, round 3, process 12 on gpu-a, 2027-01-15 08:00:00 UTC`
	if got := read.Writer.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := (Writer{}).String(); got != "process 0 on an unknown machine" {
		t.Errorf("an empty writer is %q", got)
	}
	// A newer version's record.
	newer := strings.Replace(string(written.encode()), "{", `{"nodes":{"a":[1]},`, 1)
	if read, err := decode([]byte(newer)); err != nil || read != written {
		t.Errorf("%+v, %v", read, err)
	}
	// The longest one fits.
	long := strings.Repeat("\x01", 2*maxText)
	if encoded := (record{Version: newVersion(), Previous: newVersion(), Writer: Writer{Run: long, Generation: long, Machine: long}}).encode(); len(encoded) > maxRecord {
		t.Errorf("a record has %d bytes", len(encoded))
	}
}

func TestDamagedRecord(t *testing.T) {
	version := newVersion()
	for name, text := range map[string]string{
		"empty":            "",
		"cut":              `{"version":"` + version,
		"no version":       `{}`,
		"short version":    `{"version":"` + version[:31] + `"}`,
		"a path":           `{"version":"../../../../../../../../../../a"}`,
		"previous":         `{"version":"` + version + `","previous":"x"}`,
		"another type":     `{"version":"` + version + `","round":"3"}`,
		"a negative round": `{"version":"` + version + `","round":-3}`,
		"no time":          `{"version":"` + version + `","time":"today"}`,
		"trailing":         `{"version":"` + version + `"}{}`,
		"a list":           `["` + version + `"]`,
		"zeros":            strings.Repeat("\x00", 200),
		"too long":         `{"version":"` + version + `"}` + strings.Repeat(" ", maxRecord),
	} {
		if r, err := decode([]byte(text)); err == nil {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// FuzzRecord: whatever is in a record, it is refused, or it has a version, short texts that a
// terminal can show, and is read again as it was.
func FuzzRecord(f *testing.F) {
	f.Add(record{Version: newVersion(), Writer: Writer{Run: "job7", Round: 3, Machine: "gpu-a"}}.encode())
	f.Add([]byte(`{"version":"00000000000000000000000000000000","run":"a\u001b[2Jb\ud800","machine":"\u202e"}`))
	f.Add([]byte(`{"VERSION":"00000000000000000000000000000000","time":"0000-01-01T00:00:00Z","pid":-1}`))
	f.Add([]byte(`{"version":"00000000000000000000000000000000","time":"9999-12-31T23:59:59.9999-23:59"}`))
	f.Fuzz(func(t *testing.T, encoded []byte) {
		r, err := decode(encoded)
		if err != nil {
			return
		}
		if len(encoded) > maxRecord || !isVersion(r.Version) {
			t.Fatalf("%q was read", encoded)
		}
		text := r.Writer.String()
		for _, c := range text {
			if c < ' ' || c == 0x7f || c == 0x1b || c == 0x202e {
				t.Fatalf("%q has a character %U", text, c)
			}
		}
		if len(r.Run) > maxText || len(r.Machine) > maxText || len(r.Generation) > maxText {
			t.Fatalf("a text of %q is too long", text)
		}
		if y := r.Time.UTC().Year(); y < 0 || y > 9999 {
			return // cannot be written; ours are of today
		}
		again, err := decode(r.encode())
		if err != nil || again.Version != r.Version || again.Run != r.Run {
			t.Fatalf("%+v became %+v, %v", r, again, err)
		}
	})
}
