package prove

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ApartFlag is the hidden option of `rallypoint prove` with which a process calls Apart.
const ApartFlag = "apart"

// question is what Apart reads; without a scenario it only makes the network.
type question struct {
	Config                     Config
	Launcher, Scenario, Folder string
}

// answer is what it writes; Error says why there is no network.
type answer struct {
	Error      string
	Result     Result
	AskedSteps bool
	FirstStep  time.Duration
}

// Apart tries one scenario in a network of this process's own, and ends early with in.
func Apart(ctx context.Context, in io.Reader, out io.Writer) error {
	runtime.LockOSThread() // in which the namespaces are changed, and nodes are started; never unlocked
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var q question
	if err := json.NewDecoder(in).Decode(&q); err != nil {
		return fmt.Errorf("the question of another process: %w", err)
	}
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	var a answer
	n, err := newNetwork()
	if err == nil {
		// What nodes start has no rights that this process has in its own namespaces.
		err = os.NewSyscallError("prctl", unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
	}
	if err != nil {
		a.Error = err.Error()
	} else if q.Scenario != "" {
		c := &q.Config
		c.network = n
		found, err := Find([]string{q.Scenario})
		if err != nil {
			return err
		}
		l := c.rallypoint(c.Script)
		if q.Launcher != nameRallypoint {
			l = c.torchrun(c.Script)
		}
		bounded, cancel := context.WithTimeout(ctx, c.Budget)
		defer cancel()
		a.Result = c.try(bounded, l, &found[0], q.Folder)
		a.AskedSteps, a.FirstStep = c.AskedSteps, c.FirstStep
	}
	return json.NewEncoder(out).Encode(a)
}

// ask has another process answer, in new namespaces.
func (c *Config) ask(ctx context.Context, q question) (a answer, err error) {
	cmd := exec.Command(c.Self[0], append(c.Self[1:len(c.Self):len(c.Self)], "prove", "--"+ApartFlag)...)
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Cloneflags: unix.CLONE_NEWNET}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 { // only root may have one without a namespace of users
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		attr.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN}
	}
	var stdout, stderr bytes.Buffer
	cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = attr, &stdout, &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return a, err
	}
	if err := cmd.Start(); err != nil {
		return a, err
	}
	defer context.AfterFunc(ctx, func() { _ = stdin.Close() })() // which ends it
	err = json.NewEncoder(stdin).Encode(q)
	err = errors.Join(err, cmd.Wait())
	if err != nil {
		return a, fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	if err := json.Unmarshal(stdout.Bytes(), &a); err != nil {
		return a, err
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// tryApart is try by another process, in a network of its own.
func (c *Config) tryApart(ctx context.Context, l *launcher, s *Scenario, folder string) Result {
	q := question{*c, l.name, s.Name, folder}
	script, err := absolute(c)
	q.Config.Script = script
	if end, ok := ctx.Deadline(); ok {
		q.Config.Budget = time.Until(end)
	}
	var a answer
	if err == nil {
		a, err = c.ask(ctx, q)
	}
	if err != nil {
		text := fmt.Sprintf("no network namespace can be made here: %v", err)
		return Result{Scenario: s.Name, Launcher: l.name, Outcome: Unknown, Text: text, Output: []string{}}
	}
	c.AskedSteps, c.FirstStep = a.AskedSteps, a.FirstStep
	return a.Result
}
