package cli

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// streamOption draws a value of -r or -t; of are the streams of each of two workers.
func streamOption(draw *rand.Rand) (value string, of [2]int) {
	if draw.IntN(2) == 0 {
		n := draw.IntN(4)
		return fmt.Sprint(n), [2]int{n, n}
	}
	value = "0"
	for local := range of {
		if of[local] = draw.IntN(4); of[local] > 0 {
			value = strings.TrimPrefix(fmt.Sprintf("%s,%d:%d", value, local, of[local]), "0,")
		}
	}
	return value, of
}

// logSettings says how many settings are tried; RALLYPOINT_LOG_SETTINGS is another number.
const logSettings = 24

// TestLogSettings runs two workers with some settings of redirects, tee, rank filter
// and duplicate filters, and looks at each file and at the console (A63-A72).
func TestLogSettings(t *testing.T) {
	t.Parallel()
	settings := logSettings
	if n, err := strconv.Atoi(os.Getenv("RALLYPOINT_LOG_SETTINGS")); err == nil {
		settings = n
	}
	for seed := range settings {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			tryLogSettings(t, rand.New(rand.NewPCG(uint64(seed), 0)))
		})
	}
}

// logSetting is one setting of the options for logs.
type logSetting struct {
	redirects, tee [2]int // of each worker: 1 stdout, 2 stderr
	ranks          string // whose output is shown; "": all
	filters        map[string]string
	noFiles        bool
}

// wants returns the lines on the console, by stream, and in each file of two workers that
// write "STREAM N of RANK" for N of 1 and 2.
func (l *logSetting) wants() (console, files map[string][]string) {
	console, files = map[string][]string{}, map[string][]string{}
	for i, stream := range []string{"out", "err"} {
		filtered := "filtered_std" + stream + ".log"
		if l.filters[stream] != "" && !l.noFiles {
			files[filtered] = []string{""} // also where nothing is tee'd, as torchrun's
		}
		for local := range 2 {
			shown := l.noFiles || l.ranks == "" || strings.Contains(l.ranks, fmt.Sprint(local))
			teed, filed := l.tee[local]>>i&1 == 1, (l.redirects[local]|l.tee[local])>>i&1 == 1
			file := fmt.Sprintf("%d/std%s.log", local, stream)
			for n := 1; n <= 2; n++ {
				line := fmt.Sprintf("%s %d of %d\n", stream, n, local)
				prefixed := fmt.Sprintf("[r%d]:%s", local, line)
				if filed {
					files[file] = append(files[file], line)
				}
				if teed && shown {
					console[stream] = append(console[stream], prefixed)
				} else if !filed && shown {
					console[stream] = append(console[stream], line)
				}
				if teed && shown && l.filters[stream] != "" && slices.ContainsFunc(strings.Split(l.filters[stream], ","), func(needle string) bool {
					return strings.Contains(line, needle)
				}) {
					files[filtered] = append(files[filtered], prefixed)
				}
			}
		}
	}
	return console, files
}

func tryLogSettings(t *testing.T, draw *rand.Rand) {
	one := func(of ...string) string { return of[draw.IntN(len(of))] }
	redirectOption, redirects := streamOption(draw)
	teeOption, tee := streamOption(draw)
	setting := logSetting{redirects: redirects, tee: tee, ranks: one("", "", "0", "1", "0,1")}
	setting.filters = map[string]string{"out": one("", "1 of", "none,of 1"), "err": one("", "2 of")}
	dir := one("logs", "logs", "logs", "logs", "logs", os.DevNull)
	if dir == os.DevNull {
		setting.noFiles = true
		setting.redirects, setting.tee = [2]int{}, [2]int{}
	}

	h := newHarness(t)
	p := h.run(`for i in 1 2; do echo "out $i of $RANK"; echo "err $i of $RANK" >&2; done`, "--nproc-per-node=2", "--role=r",
		"--log-dir="+dir, "-r", redirectOption, "-t", teeOption, "--local-ranks-filter="+setting.ranks,
		"--duplicate-stdout-filters="+setting.filters["out"], "--duplicate-stderr-filters="+setting.filters["err"])
	if code := p.end(); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, p.stderr.String())
	}
	console, files := setting.wants()
	for stream, got := range map[string]string{"out": p.stdout.String(), "err": p.stderr.String()} {
		if want := console[stream]; !sameLines(got, want) {
			t.Errorf("%q: std%s of the agent: %q, expected %q", p.Args, stream, got, want)
		}
	}
	found, _ := filepath.Glob(h.dir + "/logs/*/attempt_0/*.log")
	more, _ := filepath.Glob(h.dir + "/logs/*/attempt_0/*/*")
	for _, path := range append(found, more...) {
		_, name, _ := strings.Cut(path, "/attempt_0/")
		text, _ := os.ReadFile(path)
		if want, ok := files[name]; !ok || !sameLines(string(text), want) {
			t.Errorf("%q: %s: %q, expected %q (%v)", p.Args, name, text, want, ok)
		}
		delete(files, name)
	}
	if len(files) > 0 {
		t.Errorf("these are not there: %q", files)
	}
}

// sameLines reports whether a text is these lines in any order: workers write side by
// side. Empty ones do not count.
func sameLines(text string, want []string) bool {
	got := slices.Sorted(strings.Lines(text))
	want = slices.DeleteFunc(slices.Clone(want), func(line string) bool { return line == "" })
	slices.Sort(want)
	return slices.Equal(got, want)
}
