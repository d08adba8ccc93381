package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"rallypoint/cli/run"
	"rallypoint/internal/testkit"
)

// TestCompletionOnAFullDisk: a script that was not written is a failure, and no wrong usage.
func TestCompletionOnAFullDisk(t *testing.T) {
	full := testkit.Must(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
	defer full.Close()
	for _, args := range [][]string{{"completion", "bash"}, {"completion", "zsh"}, {"run", "--print-completion=bash"}} {
		var stderr strings.Builder
		if code := Main(t.Context(), append([]string{"rallypoint"}, args...), full, &stderr); code != 1 || !strings.HasSuffix(stderr.String(), "no space left on device\n") {
			t.Errorf("%v: %d, %q", args, code, stderr.String())
		}
	}
}

// TestCompletedWords asks as the shells' scripts do: one script knows `run` and the rest.
func TestCompletedWords(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"run --nproc":               "--nproc-per-node",
		"run --start-method f":      "fork forkserver",
		"run --start-method=s":      "spawn",
		"run --rdzv-endpoint":       "--rdzv-endpoint",
		"run --standalone --numa-":  "--numa-binding",
		"run --log":                 "--log-dir --log-line-prefix-template --logs-specs --log-format",
		"run -r 3 --use":            "",
		"launch --use":              "--use-env",
		"run train.py --nproc":      "",
		"run --nnodes 2 --standal":  "--standalone",
		"run -- --nproc":            "",
		"status --nproc":            "",
		"serve --data":              "--data-dir",
		"sta":                       "stacks status",
		"admin --log-l":             "--log-level",
		"run --nnodes=2 --master-p": "--master-port",
	} {
		cmd := exec.Command(os.Args[0], append([]string{"__complete"}, strings.Split(line, " ")...)...)
		cmd.Env = []string{testkit.EndAtOnce, asCommand + "=1"}
		out, err := cmd.Output()
		var words []string
		for word := range strings.Lines(string(out)) {
			if word, _, _ = strings.Cut(strings.TrimSpace(word), "\t"); word != "" && word[0] != ':' {
				words = append(words, word)
			}
		}
		if err != nil || strings.Join(words, " ") != want {
			t.Errorf("%s: %q, %v", line, words, err)
		}
	}
}

// TestBashCompletes in a bash that has what its script builds on.
func TestBashCompletes(t *testing.T) {
	const library = "/usr/share/bash-completion/bash_completion"
	if _, err := os.Stat(library); err != nil {
		t.Skip("the package bash-completion is not installed: ", err)
	}
	dir := t.TempDir()
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "rallypoint")); err != nil {
		t.Fatal(err)
	}
	_, text, _ := execute(t, "run", "--print-completion", "bash")
	cmd := exec.Command("bash", "-c", ". "+library+"\n"+text+`
		COMP_WORDS=(rallypoint run --start-method f); COMP_CWORD=3; COMP_LINE="${COMP_WORDS[*]}"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
		compopt() { :; }
		__start_rallypoint; printf '%s\n' "${COMPREPLY[@]}"`)
	cmd.Env = []string{testkit.EndAtOnce, asCommand + "=1", "PATH=" + dir + ":" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	if got := strings.Fields(string(out)); err != nil || !slices.Equal(got, []string{"fork", "forkserver"}) {
		t.Errorf("%v: %s", err, out)
	}
}

// TestManualHasTheOptions of run, and none that it refuses.
func TestManualHasTheOptions(t *testing.T) {
	for _, c := range Command().Commands() {
		if !c.DisableFlagParsing {
			continue
		}
		own := run.OptionNames(c.Name() == run.NameLaunch)
		for _, name := range run.OptionNames(true) {
			flag := c.NonInheritedFlags().Lookup(name)
			if shown := flag != nil && !flag.Hidden; shown != slices.Contains(own, name) {
				t.Errorf("%s --%s: shown: %v", c.Name(), name, shown)
			}
		}
		for _, f := range []string{"log-level"} {
			if flag := c.NonInheritedFlags().Lookup(f); c.InheritedFlags().Lookup(f) != nil || flag == nil || !flag.Hidden {
				t.Errorf("%s shows --%s", c.Name(), f)
			}
		}
		if !strings.Contains(c.Long, "PYTHON_EXEC") || !strings.Contains(c.Example, "--rdzv-endpoint=host0:29400") {
			t.Errorf("%s: %s\n%s", c.Name(), c.Long, c.Example)
		}
	}
}
