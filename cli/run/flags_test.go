package run

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"rallypoint/internal/wording"
)

func noEnv(string) (string, bool) { return "", false }

func TestParseRun(t *testing.T) {
	for _, c := range []struct {
		args string
		want func(o *options)
		argv string
	}{
		{"x.py", func(*options) {}, "x.py"},
		{"x.py --nnodes 2 -- -r", func(*options) {}, "x.py --nnodes 2 -- -r"},
		{"-- x.py -- y", func(*options) {}, "x.py -- y"},
		{"--nproc-per-node 2 x", func(o *options) { o.nproc = "2" }, "x"},
		{"--nproc_per_node=2 x", func(o *options) { o.nproc = "2" }, "x"},
		{"--nproc=2 x", func(o *options) { o.nproc = "2" }, "x"},
		{"--redirect=3 --te 1 x", func(o *options) { o.redirects, o.tee = "3", "1" }, "x"},
		{"--re 1 x", func(o *options) { o.redirects = "1" }, "x"},
		{"-r3 -t 0:1,1:2 -m x", func(o *options) { o.redirects, o.tee, o.module = "3", "0:1,1:2", true }, "x"},
		{"-mr=1 x", func(o *options) { o.redirects, o.module = "1", true }, "x"},
		{"-mr 1 x", func(o *options) { o.redirects, o.module = "1", true }, "x"},
		{"--rdzv-conf a=b=c x", func(o *options) { o.conf = "a=b=c" }, "x"},
		{"--max-restarts=1 --max_restarts 2 x", func(o *options) { o.maxRestarts = 2 }, "x"},
		{"--max-restarts 10/6h --max-no-progress 3 x", func(o *options) { o.maxRestarts, o.restartWindow, o.maxNoProgress = 10, 6*time.Hour, 3 }, "x"},
		{"--max-restarts=10/2d x", func(o *options) { o.maxRestarts, o.restartWindow = 10, 48*time.Hour }, "x"},
		{"--max-restarts=10/90m --max-restarts=3 x", func(o *options) { o.maxRestarts = 3 }, "x"},
		{"--max-r=1/5s x", func(o *options) { o.maxRestarts, o.restartWindow = 1, 5*time.Second }, "x"},
		{"--node-rank -1 x", func(o *options) { o.nodeRank = -1 }, "x"},
		{"--monitor-interval 5 --virtual-local-rank x", func(o *options) { o.monitorInterval, o.virtualRank = 5, true }, "x"},
		{"--duplicate-stdout-filters a,b,,c x", func(o *options) { o.outFilters = []string{"a", "b,c"} }, "x"},
		{"--log-dir= x", func(o *options) { o.logDir = "" }, "x"},
		{"-1 x", func(*options) {}, "-1 x"},
		{"- x", func(*options) {}, "- x"},
		{"-h", func(o *options) { o.help = true }, ""},
		{"--he", func(o *options) { o.help = true }, ""},
		{"--exit-barrier-timeout 0 --no-macros --restart-delay .5 x", func(o *options) {
			o.exitBarrierTimeout, o.noMacros, o.restartDelay = 0, true, .5
		}, "x"},
		{"--rdzv-e h:1 --rdzv_event_log_handler console x", func(o *options) { o.endpoint, o.rdzvEventHandler = "h:1", "console" }, "x"},
	} {
		got, err := parseOptions(strings.Fields(c.args), noEnv, false)
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		want := defaultOptions()
		c.want(want)
		if argv := strings.Join(got.argv, " "); argv != c.argv {
			t.Errorf("%s: the script is %q, expected %q", c.args, argv, c.argv)
		}
		got.given, got.argv, want.given = nil, nil, nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.args, got, want)
		}
	}
}

func TestParseRunRefuses(t *testing.T) {
	for args, what := range map[string]string{
		"--no-such x":               "unrecognized arguments: --no-such",
		"--nodes x":                 "unrecognized arguments: --nodes; did you mean --nnodes?",
		"--max_restart_s=3 x":       "unrecognized arguments: --max_restart_s; did you mean --max-restarts?",
		"-nproc-per-node=2 x":       "unrecognized arguments: -nproc-per-node=2; did you mean --nproc-per-node?",
		"-x y":                      "unrecognized arguments: -x",
		"--log=1 x":                 "ambiguous option: --log could match --log-dir, --log-line-prefix-template, --logs-specs",
		"--ma x":                    "ambiguous option",
		"--nnodes":                  "--nnodes: expected one argument",
		"--nnodes --role r x":       "--nnodes: expected one argument",
		"-r":                        "--redirects: expected one argument",
		"--standalone=1 x":          "--standalone: it takes no value",
		"--max-restarts=x x":        `--max-restarts: invalid int value: "x"`,
		"--max-restarts=1.5 x":      `invalid int value`,
		"--max-restarts=1/ x":       `invalid N/TIME (such as 10/6h) value: "1/"`,
		"--max-restarts=1/6 x":      `invalid N/TIME (such as 10/6h) value`,
		"--max-restarts=1/-6h x":    `invalid N/TIME (such as 10/6h) value`,
		"--max-restarts=1/0s x":     `invalid N/TIME (such as 10/6h) value`,
		"--max-restarts=1/99999d x": `invalid N/TIME (such as 10/6h) value`,
		"--max-restarts=1/1h2d x":   `invalid N/TIME (such as 10/6h) value`,
		"--max-restarts=x/6h x":     `invalid int value`,
		"--node-rank=1/6h x":        `invalid int value`,
		"--max-no=1 x":              `unrecognized arguments: --max-no`,
		"--monitor-interval=a x":    `invalid float value`,
		"--start-method=zzz x":      `invalid choice: "zzz"`,
		"--exit-barrier=1 x":        "unrecognized arguments",
		"--numa-binding=cores x":    "invalid choice",
		"--print-completion=sh":     "invalid choice",
		"--nproc_per-node-x=1 x":    "unrecognized arguments",
		"--shutdown-timeout= x.py":  "invalid int value",
	} {
		_, err := parseOptions(strings.Fields(args), noEnv, false)
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v, expected %q", args, err, what)
		}
	}
}

// TestParseRunVariables sets each option by its variable, and over it by the
// command line.
func TestParseRunVariables(t *testing.T) {
	for i := range optionTable {
		f := &optionTable[i]
		value, other := "7", "8"
		name := "PET_" + strings.ToUpper(strings.ReplaceAll(f.name, "-", "_"))
		env := func(n string) (string, bool) { return value, n == name }
		got, err := parseOptions(nil, env, false)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if set := !reflect.DeepEqual(values(got), values(defaultOptions())); set == f.noPET {
			t.Errorf("%s is taken: %v", name, set)
		}
		if f.noPET || f.on != nil || f.choices != nil {
			continue
		}
		got, err = parseOptions([]string{"--" + f.name, other}, env, false)
		want, _ := parseOptions([]string{"--" + f.name, other}, noEnv, false)
		if err != nil || !reflect.DeepEqual(values(got), values(want)) {
			t.Errorf("%s is not overruled: %v", name, err)
		}
	}
	for name, value := range map[string]string{"PET_STANDALONE": "true", "PET_MODULE": "", "PET_MAX_RESTARTS": "x", "PET_MASTER_PORT": ""} {
		_, err := parseOptions([]string{"x"}, func(n string) (string, bool) { return value, n == name }, false)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%q: %v", name, value, err)
		}
	}
	o, err := parseOptions([]string{"x"}, func(n string) (string, bool) { return "0", n == "PET_STANDALONE" }, false)
	if err != nil || o.standalone {
		t.Errorf("PET_STANDALONE=0: %v, %v", o, err)
	}
}

// values are the options without what says where they come from.
func values(o *options) options {
	v := *o
	v.given, v.argv = nil, nil
	return v
}

// TestRunHelp names every option in its group.
func TestRunHelp(t *testing.T) {
	help := helpText(true)
	if strings.Contains(helpText(false), "--use-env") {
		t.Error("the help of run has an option of launch")
	}
	for _, f := range optionTable {
		if strings.Count(help, "--"+f.name+"\n")+strings.Count(help, "--"+f.name+" ") == 0 {
			t.Errorf("--%s is not in the help", f.name)
		}
		if !slices.Contains(OptionGroups, f.group) {
			t.Errorf("--%s has no group", f.name)
		}
	}
	for line := range strings.Lines(help) {
		if len(line) > wording.HelpWidth+1 {
			t.Errorf("a long line: %s", line)
		}
	}
}
