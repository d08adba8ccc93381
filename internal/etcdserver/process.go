package etcdserver

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is an etcd that this process runs. It gets SIGKILL when this process
// ends, however that comes.
type Process struct {
	cmd    *exec.Cmd
	Output *outputTail
	exited chan struct{} // closed when it has ended
	state  string        // how, once exited is closed
	Ended  chan struct{} // closed when the thread that started it is done
}

// StartProcess starts a program. out gets its standard output and error, whose end is also kept
// for error messages.
func StartProcess(program string, args []string, out io.Writer) (*Process, error) {
	p := &Process{Output: &outputTail{next: out}, exited: make(chan struct{}), Ended: make(chan struct{})}
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = p.Output, p.Output
	p.cmd.WaitDelay = time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "ETCD_") { // which would change what the flags say
			p.cmd.Env = append(p.cmd.Env, entry)
		}
	}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		<-p.Ended
		return nil, err
	}
	return p, nil
}

// run starts the program and waits for its end on one thread: Linux sends the
// parent-death signal when the thread that forked ends.
func (p *Process) run(started chan<- error) {
	defer close(p.Ended)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	err = p.cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	p.state = "exit status 0"
	if err != nil {
		p.state = err.Error()
	}
	close(p.exited)
}

// Stop ends the process, with SIGTERM and, after a while, with SIGKILL, and waits
// for it.
func (p *Process) Stop(patience time.Duration) {
	p.Signal(syscall.SIGTERM)
	p.Signal(syscall.SIGCONT)
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-p.exited:
	case <-t.C:
		p.Signal(syscall.SIGKILL)
	}
	<-p.Ended
}

// Signal sends the process a signal, unless it has ended.
func (p *Process) Signal(sig syscall.Signal) {
	select {
	case <-p.exited: // the pid may be another's by now
	default:
		_ = p.cmd.Process.Signal(sig)
	}
}

// failure says how the process ended, with its last output.
func (p *Process) failure() error {
	<-p.exited
	return fmt.Errorf("it ended at once (%s); the end of its output:\n%s", p.state, p.Output.String())
}

// outputTail passes its input on and keeps the end of it.
type outputTail struct {
	next io.Writer // may be nil

	mu   sync.Mutex
	kept []byte
}

const tailSize = 4 << 10

// Write implements io.Writer. It never fails: a full disk must not end the etcd.
func (o *outputTail) Write(b []byte) (int, error) {
	if o.next != nil {
		_, _ = o.next.Write(b)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = append(o.kept, b...)
	if n := len(o.kept) - tailSize; n > 0 {
		o.kept = append(o.kept[:0], o.kept[n:]...)
	}
	return len(b), nil
}

func (o *outputTail) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(bytes.TrimSpace(o.kept))
}
