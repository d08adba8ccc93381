package trace

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	r "rallypoint/core/rendezvous"
)

var update = flag.Bool("update", false, "write testdata/golden.jsonl again")

// oneOfEach returns a record of each event and each effect, with a value in every field.
func oneOfEach() (records []Record) {
	add := func(rec Record) {
		rec.At, rec.Run, rec.Number, rec.Seconds = time.Unix(1700000000, 0).UTC(), "job", uint64(len(records)+1), 1.5
		records = append(records, rec)
	}
	add(Record{State: []byte("state"), Slack: 0.5})
	succession := filled(reflect.TypeFor[r.Succession]()).(r.Succession)
	add(Record{State: []byte("state"), Host: "node", Group: "group", Succession: &succession})
	add(Record{TooLarge: 1 << 21})
	var results []r.Result
	for _, name := range slices.Sorted(maps.Keys(types)) {
		if name == "Reply" {
			continue // below, with each result
		}
		v := filled(types[name])
		if ev, ok := v.(r.Event); ok {
			add(Record{Event: ev, Aside: true})
		}
		if e, ok := v.(r.Effect); ok {
			add(Record{Effects: []r.Effect{e}})
		}
		if res, ok := v.(r.Result); ok {
			results = append(results, res)
		}
	}
	for i, res := range append(results, nil) {
		add(Record{Effects: []r.Effect{r.Reply{Session: "s", Number: uint64(i), Result: res}}})
	}
	add(Record{Effects: []r.Effect{r.Reply{Session: "s", Number: 9, Err: r.Errorf(r.CodeClosed, "closed")}}})
	return records
}

// TestGolden holds the format of histories: a record of each event and each effect,
// with a value in every field, is written as in testdata/golden.jsonl and read as
// it was. Histories of earlier releases stay readable as long as it passes.
func TestGolden(t *testing.T) {
	var got bytes.Buffer
	records := oneOfEach()
	for _, rec := range records {
		line, err := rec.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got.Write(line)
	}
	const path = "testdata/golden.jsonl"
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, got.Bytes()) {
		t.Errorf("the format has changed: go test -update shows how in git diff %s", path)
	}
	lines := bytes.Split(bytes.TrimSpace(want), []byte("\n"))
	if len(lines) != len(records) {
		t.Fatalf("%d lines, want %d", len(lines), len(records))
	}
	for i, line := range lines {
		rec, err := Decode(line)
		if err != nil || !reflect.DeepEqual(rec, records[i]) {
			t.Errorf("line %d is read as %+v, %v; want %+v", i+1, rec, err, records[i])
		}
	}
}

// filled returns a value of type typ with another value in every field.
func filled(typ reflect.Type) any {
	n := 0
	v := reflect.New(typ).Elem()
	fill(v, &n)
	return v.Interface()
}

func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1700000000+int64(*n), 0).UTC()))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), n)
		}
	case reflect.String:
		v.SetString(fmt.Sprint("text", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Uint8:
		v.SetUint(uint64(*n % 256))
	default:
		panic("no value for " + v.Type().String())
	}
}
