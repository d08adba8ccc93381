package run

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// envInterpreter is set by the Python entry point to its own interpreter, and envAsModule to 1 if
// that was started with `python -m rallypoint`. The workers inherit neither.
const (
	envInterpreter = "RALLYPOINT_PYTHON"
	envAsModule    = "RALLYPOINT_AS_MODULE"

	// envDebugger is set to a JSON object if a debugger that follows child processes runs in this
	// process: the arguments of the interpreter before the name of a "script" or a "module".
	envDebugger = "RALLYPOINT_DEBUGGER"
)

// An interpreter runs scripts, and is asked for plug-ins and devices.
type interpreter struct {
	path string
	why  string // what chose it, for the log
	not  string // the other one that a reader may expect; "": there is none
}

// Command is this command, to be started again: by its interpreter where that has the library as a
// package.
func Command(env []string) ([]string, error) {
	if python := environ(env).get(envInterpreter); python != "" {
		return []string{python, "-m", "rallypoint"}, nil
	}
	self, err := os.Executable()
	return []string{self}, err
}

// Interpreter is the Python of a run's scripts.
func Interpreter(env []string) string {
	return cmp.Or(environ(env).get("PYTHON_EXEC"), chooseInterpreter(environ(env)).path)
}

// chooseInterpreter returns the Python that runs this command, if the user has named it with
// `python -m rallypoint`; else that of the active environment, $VIRTUAL_ENV; else the one in which
// this command is installed, else the first in PATH. If the command has an environment to itself
// (`uv tool install`, pipx), that environment has no other packages, so its interpreter is the
// last choice.
func chooseInterpreter(env environ) interpreter {
	own, named := env.get(envInterpreter), env.get(envAsModule) == "1"
	if path := activeInterpreter(env); path != "" {
		differs := own != "" && !sameInterpreter(path, own)
		switch {
		case differs && named:
			return interpreter{own, "which runs this command", path + " of $VIRTUAL_ENV"}
		case differs:
			return interpreter{path, "of $VIRTUAL_ENV", own + ", which runs this command"}
		}
		return interpreter{path: path, why: "of $VIRTUAL_ENV"}
	}
	if own != "" && (named || !toolEnvironment(own)) {
		return interpreter{path: own, why: "which has this command installed"}
	}
	for _, name := range []string{"python3", "python"} {
		if path, err := exec.LookPath(name); err == nil {
			return interpreter{path, "the first in PATH", own}
		}
	}
	if own != "" {
		return interpreter{path: own, why: "of the tool's own environment, since there is no other"}
	}
	return interpreter{path: "python3", why: "which PATH lacks"}
}

// activeInterpreter is the Python of $VIRTUAL_ENV; "" if there is none.
func activeInterpreter(env environ) string {
	path := filepath.Join(env.get("VIRTUAL_ENV"), "bin", "python")
	if _, err := exec.LookPath(path); err != nil || !filepath.IsAbs(path) {
		return ""
	}
	return path
}

func defaultInterpreter(env environ) string { return chooseInterpreter(env).path }

// interpreterArgs returns the arguments of the interpreter before the name of what it runs.
func interpreterArgs(o *options, env environ) []string {
	var debugger struct{ Script, Module []string }
	_ = json.Unmarshal([]byte(env.get(envDebugger)), &debugger) // nothing, if there is no debugger
	switch {
	case o.runPath:
		return []string{"-u", "-c", runPathScript}
	case o.module && debugger.Module != nil:
		return debugger.Module
	case o.module:
		return []string{"-u", "-m"}
	case debugger.Script != nil && !strings.HasPrefix(o.argv[0], "-"):
		return debugger.Script
	}
	return []string{"-u"}
}

// toolEnvironment reports whether an interpreter is that of an environment which uv
// or pipx made for one tool.
func toolEnvironment(python string) bool {
	root := filepath.Dir(filepath.Dir(python))
	for _, receipt := range []string{"uv-receipt.toml", "pipx_metadata.json"} {
		if _, err := os.Stat(filepath.Join(root, receipt)); err == nil {
			return true
		}
	}
	return false
}

// sameInterpreter reports whether both are of one environment. The files are no
// help: all environments have links to one interpreter.
func sameInterpreter(a, b string) bool {
	folderA, errA := filepath.EvalSymlinks(filepath.Dir(a))
	folderB, errB := filepath.EvalSymlinks(filepath.Dir(b))
	return errA == nil && errB == nil && folderA == folderB
}
