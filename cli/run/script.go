package run

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/macro"
	"rallypoint/agent/process"
)

// checkScript refuses a program, script or module that is missing or cannot be run,
// before this node meets the others: they would wait for workers that never start.
// It runs nothing but, for a module, an interpreter that looks for it.
func (c *config) checkScript(o *options) error {
	program, err := process.LookUp(c.spec.Argv[0], c.spec.Environ)
	if err == nil {
		err = canExecute(program)
	}
	python := !o.noPython || o.runPath
	switch {
	case err != nil && python:
		return usagef("the workers' interpreter cannot be run: %s; PYTHON_EXEC or an active environment names another, --no-python runs a program without one", plainly(err))
	case err != nil:
		return usagef("the program cannot be run: %s", plainly(err))
	case !python:
		return nil
	case o.module && !o.runPath:
		return checkModule(program, o.argv[0], c.spec.Environ)
	}
	script := o.argv[0]
	if strings.HasPrefix(script, "-") && !o.runPath {
		return nil // the script is on standard input (-), or in the interpreter's own options (-c CODE)
	}
	if !o.noMacros {
		script = macro.Substitute(script, map[string]string{"local_rank": "0"})
	}
	return checkScriptFile(script)
}

// plainly is an error of a file in one phrase.
func plainly(err error) string {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Path + ": " + at.Err.Error()
	}
	return strings.TrimPrefix(err.Error(), "start ")
}

// canExecute reports why a program cannot be executed, nil if nothing speaks against it.
func canExecute(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return &fs.PathError{Op: "execute", Path: path, Err: unix.EISDIR}
	}
	if err := unix.Access(path, unix.X_OK); err != nil {
		return &fs.PathError{Op: "execute", Path: path, Err: errors.New("not executable (chmod +x, or start it by its interpreter)")}
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	interpreter, ok := shebang(path)
	if !ok {
		return nil
	}
	if _, err := os.Stat(interpreter); err != nil {
		return fmt.Errorf("%s: its first line names the interpreter %q, which does not exist", path, interpreter)
	}
	return nil
}

// shebang is the program that the first line of a script names.
func shebang(path string) (interpreter string, ok bool) {
	file, err := os.Open(path)
	if err != nil {
		return "", false // readable or not, it may be a program
	}
	defer file.Close()
	head := make([]byte, 256)
	n, _ := file.Read(head)
	line, found := bytes.CutPrefix(head[:n], []byte("#!"))
	line, _, whole := bytes.Cut(line, []byte("\n"))
	if !found || !whole {
		return "", false
	}
	text := strings.TrimLeft(string(line), " \t")
	if i := strings.IndexAny(text, " \t"); i >= 0 {
		text = text[:i]
	}
	return text, text != ""
}

// checkScriptFile looks for the program that an interpreter will run: a file, or a folder or
// archive with a __main__.py.
func checkScriptFile(script string) error {
	info, err := os.Stat(script)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !filepath.IsAbs(script):
		here, _ := os.Getwd()
		return usagef("the script %s does not exist in %s", script, here)
	case errors.Is(err, fs.ErrNotExist):
		return usagef("the script %s does not exist", script)
	case err != nil:
		return usagef("the script cannot be read: %s", plainly(err))
	case info.IsDir():
		if _, err := os.Stat(filepath.Join(script, "__main__.py")); err != nil {
			return usagef("the script %s is a folder without a __main__.py", script)
		}
		return nil
	}
	if err := unix.Access(script, unix.R_OK); err != nil {
		return usagef("the script cannot be read: %s: %v", script, err)
	}
	return nil
}

// modulePatience bounds how long an interpreter may look for a module: a package that
// changes where its parts are has to be imported for that.
const modulePatience = time.Minute

// moduleQuestion asks an interpreter whether it would find a module.
//
//go:embed find_module.py
var moduleQuestion string

// checkModule asks the interpreter for a module as its -m looks for it. Only a clear
// no counts: the workers say more about everything else.
func checkModule(interpreter, module string, env []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), modulePatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter, "-c", moduleQuestion, module)
	cmd.Env = env
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if why, missing := strings.CutPrefix(string(out), "missing: "); err == nil && missing {
		return usagef("the module cannot be run: %s (asked %s)", strings.TrimSpace(why), interpreter)
	}
	return nil
}
