package run

import (
	"os"
	"os/exec"
	"path/filepath"
)

// envInterpreter is set by the Python entry point to its own interpreter. The
// workers do not inherit it.
const envInterpreter = "RALLYPOINT_PYTHON"

// An interpreter runs scripts, and is asked for plug-ins and devices.
type interpreter struct {
	path string
	why  string // what chose it, for the log
	note bool   // it is not the one that a reader would expect: worth a warning
}

// chooseInterpreter returns the Python of the active environment: that of $VIRTUAL_ENV, else the
// one in which this command is installed, else the first in PATH. If the command has an
// environment to itself (`uv tool install`, pipx), that environment has no other packages, so its
// interpreter is the last choice.
func chooseInterpreter(env environ) interpreter {
	own := env.get(envInterpreter)
	if active := env.get("VIRTUAL_ENV"); active != "" {
		path := filepath.Join(active, "bin", "python")
		if _, err := exec.LookPath(path); err == nil && filepath.IsAbs(path) {
			return interpreter{path, "of $VIRTUAL_ENV", own != "" && !sameInterpreter(path, own)}
		}
	}
	if own != "" && !toolEnvironment(own) {
		return interpreter{path: own, why: "which has this command installed"}
	}
	for _, name := range []string{"python3", "python"} {
		if path, err := exec.LookPath(name); err == nil {
			return interpreter{path, "the first in PATH", own != ""}
		}
	}
	if own != "" {
		return interpreter{path: own, why: "of the tool's own environment, since there is no other"}
	}
	return interpreter{path: "python3", why: "which PATH lacks"}
}

func defaultInterpreter(env environ) string { return chooseInterpreter(env).path }

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
