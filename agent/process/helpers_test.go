package process

import (
	"bufio"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// helperPrelude is the beginning of the scripts of TestHelpers.
const helperPrelude = `
import os, signal, subprocess, sys, time
stop = []
def on(*signals):
    for s in signals: signal.signal(s, lambda *a: stop.append(1))
def say(text):
    with open(os.environ["OUT"], "a") as f: f.write(text + "\n")
def up():
    with open(os.environ["UP"], "w") as f: f.write("up\n")
def start(code, **kw):
    p = subprocess.Popen([sys.executable, "-c", open(os.environ["PRELUDE"]).read() + code], stdout=subprocess.PIPE, **kw)
    p.stdout.readline()
    return p
def helper(**kw): return start("print('up', flush=True); time.sleep(1000)", **kw)
def handler(**kw): return start("on(signal.SIGTERM); print('up', flush=True)\nwhile not stop: time.sleep(0.01)\nsay('helper saved')", **kw)
def stubborn(**kw): return start("signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)", **kw)
def saver(**kw): return start("print('up', flush=True); time.sleep(0.3); say('saver saved')", **kw)
def wait():
    up()
    while not stop: time.sleep(0.01)
def save(h):
    try: h.wait(0.3)
    except subprocess.TimeoutExpired: say("saved with its helper")
    else: say("the helper was gone")
`

// TestHelpers stops workers of many kinds that have started other processes. Whatever they are,
// nothing of them is left.
func TestHelpers(t *testing.T) {
	python, err := LookUp("python3", []string{"PATH=" + os.Getenv("PATH")})
	if err != nil {
		t.Skip(err)
	}
	const saves = "on(signal.SIGTERM); h = helper(); wait(); save(h)"
	for _, c := range []struct {
		name, shell, script, said string // shell: "" starts the script itself; $RUN is its command
		sig                       unix.Signal
		grace                     time.Duration
	}{
		{name: "script", script: saves, said: "saved with its helper"},
		{name: "two helpers deep", script: "on(signal.SIGTERM); h = start('p = helper(); print(1, flush=True); p.wait()'); wait(); save(h)", said: "saved with its helper"},
		{name: "shell around it", shell: "$RUN; echo after >> $OUT", script: saves, said: "saved with its helper"},
		{name: "shell that execs", shell: "exec $RUN", script: saves, said: "saved with its helper"},
		{name: "shell with a trap", shell: "trap 'echo trapped >> $OUT' TERM; $RUN; echo after >> $OUT", script: saves, said: "saved with its helper trapped after"},
		{name: "shell that ignores it", shell: "trap '' TERM; $RUN; echo after >> $OUT", script: saves, said: "saved with its helper after"},
		{name: "script in the background", shell: "trap 'echo trapped >> $OUT' TERM; $RUN & wait; wait; echo after >> $OUT", script: saves, said: "trapped saved with its helper after"},
		{name: "shells in a shell", shell: "sh -c 'bash -c \"$RUN; :\"; :'; :", script: saves, said: "saved with its helper"},
		{name: "wrapper that ends", shell: `exec $PYTHON -c 'import os, subprocess; subprocess.run(os.environ["RUN"].split())'`, script: saves, said: "saved with its helper"},
		{name: "wrapper that ends in a shell with a trap", shell: `trap : TERM; $PYTHON -c 'import os, subprocess; subprocess.run(os.environ["RUN"].split())'; wait; sleep 1000`, script: saves, said: "saved with its helper", grace: time.Second},
		{name: "helper with a handler", script: "on(signal.SIGTERM); handler(); wait(); say('saved')", said: "saved helper saved"},
		{name: "helper in a session", script: "on(signal.SIGTERM); h = handler(start_new_session=True); wait(); say('saved')", said: "saved helper saved"},
		{name: "helper that ignores it", script: "on(signal.SIGTERM); stubborn(); wait(); say('saved')", said: "saved", grace: 100 * time.Millisecond},
		{name: "saver", script: "on(signal.SIGTERM); helper(); wait(); saver()", said: "saver saved"},
		{name: "saver in a session", script: "on(signal.SIGTERM); wait(); saver(start_new_session=True)", said: "saver saved"},
		{name: "forked saver", script: "on(signal.SIGTERM); wait()\nif os.fork() == 0:\n  signal.signal(signal.SIGTERM, signal.SIG_DFL); time.sleep(0.3); say('saver saved')", said: "saver saved"},
		{name: "saver that needs too long", script: "on(signal.SIGTERM); wait(); helper()", grace: 100 * time.Millisecond},
		{name: "script that ignores it", script: "signal.signal(signal.SIGTERM, signal.SIG_IGN); h = handler(); up(); time.sleep(1000)", said: "helper saved", grace: 100 * time.Millisecond},
		{name: "script and helper that ignore it", script: "signal.signal(signal.SIGTERM, signal.SIG_IGN); h = stubborn(); up(); time.sleep(1000)", grace: 100 * time.Millisecond},
		{name: "stopped script", script: "on(signal.SIGTERM); h = handler(); up(); os.kill(os.getpid(), signal.SIGSTOP); say('saved')", said: "helper saved", grace: 100 * time.Millisecond},
		{name: "no grace", script: "signal.signal(signal.SIGTERM, signal.SIG_IGN); h = stubborn(); up(); time.sleep(1000)", grace: -1},
		{name: "keyboard", script: "on(signal.SIGINT); h = helper(); wait(); save(h)", sig: unix.SIGINT, said: "the helper was gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			testkit.Check(t, unix.Mkfifo(dir+"/up", 0o600))
			testkit.Check(t, os.WriteFile(dir+"/prelude.py", []byte(helperPrelude), 0o600))
			testkit.Check(t, os.WriteFile(dir+"/script.py", []byte(helperPrelude+c.script), 0o600))
			up := testkit.Must(os.OpenFile(dir+"/up", os.O_RDWR, 0))(t)
			defer func() { _ = up.Close() }()
			marker := "HELPERS=" + dir + "/"
			run := python + " " + dir + "/script.py"
			env := []string{"PATH=" + os.Getenv("PATH"), "PYTHON=" + python, "RUN=" + run, "OUT=" + dir + "/out", "UP=" + dir + "/up", "PRELUDE=" + dir + "/prelude.py", marker}
			argv := strings.Fields(run)
			if c.shell != "" {
				argv = []string{"sh", "-c", c.shell}
			}
			f := NewForker(nil)
			defer f.Close()
			log := slog.New(slog.DiscardHandler)
			reaper := NewReaper(f, false, false, marker, log)
			defer reaper.Close()
			group, err := StartWorkers(f, reaper, nil, []Launch{{0, argv, env, []uintptr{0, 1, 2}, nil, ""}}, log)
			if err != nil {
				t.Fatal(err)
			}
			testkit.Check(t, up.SetReadDeadline(time.Now().Add(testkit.Patience)))
			if _, err := bufio.NewReader(up).ReadString('\n'); err != nil {
				t.Error(err)
			}
			o := StopOptions{Signal: unix.SIGTERM, Grace: testkit.Patience, quiet: true}
			if c.sig != 0 {
				o.Signal = c.sig
			}
			if c.grace != 0 {
				o.Grace = max(c.grace, 0)
			}
			group.Stop(o)
			text, _ := os.ReadFile(dir + "/out")
			if said := strings.Join(strings.Fields(string(text)), " "); said != c.said {
				t.Errorf("said %q, want %q", said, c.said)
			}
			if left := markedProcesses(marker); len(left) != 0 {
				t.Errorf("processes %v are left", left)
			}
		})
	}
}
