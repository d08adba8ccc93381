package etcdstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// process is an etcd that this process runs. It gets SIGKILL when this process
// ends, however that comes.
type process struct {
	cmd    *exec.Cmd
	tail   *tail
	exited chan struct{} // closed when it has ended
	state  string        // how, once exited is closed
	ended  chan struct{} // closed when the thread that started it is done
}

// startProcess starts a program. out gets what it writes to its standard output and
// error, besides the end of it, which is kept for error messages.
func startProcess(program string, args []string, out io.Writer) (*process, error) {
	p := &process{tail: &tail{next: out}, exited: make(chan struct{}), ended: make(chan struct{})}
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = p.tail, p.tail
	p.cmd.WaitDelay = time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	for _, entry := range os.Environ() {
		if !isEtcdVariable(entry) {
			p.cmd.Env = append(p.cmd.Env, entry)
		}
	}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		<-p.ended
		return nil, err
	}
	return p, nil
}

// isEtcdVariable reports whether an entry of the environment would change what
// etcd's flags say.
func isEtcdVariable(entry string) bool { return len(entry) > 5 && entry[:5] == "ETCD_" }

// run starts the program and waits for its end on one thread: Linux sends the
// parent-death signal when the thread that forked ends.
func (p *process) run(started chan<- error) {
	defer close(p.ended)
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

// stop ends the process, with SIGTERM and, after a while, with SIGKILL, and waits
// for it.
func (p *process) stop(patience time.Duration) {
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGCONT)
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-p.exited:
	case <-t.C:
		p.signal(syscall.SIGKILL)
	}
	<-p.ended
}

func (p *process) signal(sig syscall.Signal) {
	select {
	case <-p.exited: // the pid may be another's by now
	default:
		_ = p.cmd.Process.Signal(sig)
	}
}

// failure says how the process ended and what it wrote last.
func (p *process) failure() error {
	<-p.exited
	return fmt.Errorf("it ended at once (%s); the end of its output:\n%s", p.state, p.tail.String())
}

// tail passes on what is written and keeps the end of it.
type tail struct {
	next io.Writer // may be nil

	mu   sync.Mutex
	kept []byte
}

const tailSize = 4 << 10

// Write implements io.Writer. It never fails: a full disk must not end the etcd.
func (t *tail) Write(b []byte) (int, error) {
	if t.next != nil {
		_, _ = t.next.Write(b)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b...)
	if n := len(t.kept) - tailSize; n > 0 {
		t.kept = append(t.kept[:0], t.kept[n:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.kept))
}
