package logs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Plan is where the workers of one attempt write.
type Plan struct {
	Workers              []Paths // by local rank
	outFilter, errFilter string  // of lines that hold a text of OutFilters or ErrFilters; "" none
}

// Paths are the files of one worker.
type Paths struct {
	out, err       string // "": the agent's own stream
	teeOut, teeErr string // what is copied to the console; "" nothing
	ErrorFile      string // "": none
}

// Show limits the console to the output of some ranks; nil stands for all. base is the rank of
// the first worker.
func (p *Plan) Show(ranks []int, base int) {
	if ranks == nil {
		return
	}
	for local := range p.Workers {
		if slices.Contains(ranks, base+local) {
			continue
		}
		w := &p.Workers[local]
		for _, file := range []*string{&w.out, &w.err} {
			if *file == "" {
				*file = os.DevNull
			}
		}
		w.teeOut, w.teeErr = "", ""
	}
}

// Planner asks a plug-in of Python, a LogsSpecs of torch, where the workers
// write. It is for one goroutine.
//
// The plug-in is on the other end of a socket. Each question is a line: a JSON array
// of the workers' variables, an object for each local rank. The answer is a line, too:
// the fields of torch's LogsDest, each an object by local rank, and in "envs" the
// variables as the plug-in left them; or "error" with what went wrong.
type Planner struct {
	conn     *os.File
	patience time.Duration
}

// NewPlanner returns a planner that waits at most patience for each answer. conn
// must have deadlines; the planner does not close it.
func NewPlanner(conn *os.File, patience time.Duration) *Planner {
	return &Planner{conn, patience}
}

// maxAnswer is the most that is read of an answer, in bytes: room for five paths and all
// variables of more than a thousand workers.
const maxAnswer = 16 << 20

type logsDest struct {
	Error          string                    `json:"error"`
	Stdouts        map[int]string            `json:"stdouts"`
	Stderrs        map[int]string            `json:"stderrs"`
	TeeStdouts     map[int]string            `json:"tee_stdouts"`
	TeeStderrs     map[int]string            `json:"tee_stderrs"`
	ErrorFiles     map[int]string            `json:"error_files"`
	FilteredStdout string                    `json:"filtered_stdout"`
	FilteredStderr string                    `json:"filtered_stderr"`
	Envs           map[int]map[string]string `json:"envs"`
}

// Plan asks for the next attempt. envs are the workers' variables, by local rank; the
// plug-in may change them.
func (p *Planner) Plan(ctx context.Context, envs []map[string]string) (plan *Plan, changed []map[string]string, err error) {
	question, err := json.Marshal(envs)
	if err != nil {
		return nil, nil, err
	}
	_ = p.conn.SetDeadline(time.Now().Add(p.patience))
	unhook := context.AfterFunc(ctx, func() { _ = p.conn.SetDeadline(time.Unix(1, 0)) })
	defer unhook()
	var line []byte
	if _, err = p.conn.Write(append(question, '\n')); err == nil {
		line, err = readLine(p.conn)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, nil, fmt.Errorf("the plug-in for logs did not say within %v where the workers write", p.patience)
	case err != nil:
		return nil, nil, fmt.Errorf("the plug-in for logs has ended: %w", err)
	}
	var dest logsDest
	if err := json.Unmarshal(line, &dest); err != nil {
		return nil, nil, fmt.Errorf("the plug-in for logs: not a LogsDest: %w", err)
	}
	if dest.Error != "" {
		return nil, nil, errors.New("the plug-in for logs: " + dest.Error)
	}
	return dest.plan(envs)
}

// readLine reads to the next line feed; nothing may follow it.
func readLine(conn *os.File) ([]byte, error) {
	var line []byte
	buf := make([]byte, 64<<10)
	for {
		n, err := conn.Read(buf)
		line = append(line, buf[:n]...)
		switch {
		case n > 0 && buf[n-1] == '\n':
			return line, nil
		case err != nil:
			return nil, err
		case len(line) > maxAnswer:
			return nil, fmt.Errorf("it answers more than %d bytes", maxAnswer)
		}
	}
}

// plan takes an answer for the workers of envs.
func (l *logsDest) plan(envs []map[string]string) (*Plan, []map[string]string, error) {
	plan := &Plan{outFilter: l.FilteredStdout, errFilter: l.FilteredStderr}
	changed := make([]map[string]string, len(envs))
	texts := []string{plan.outFilter, plan.errFilter}
	for local := range envs {
		w := Paths{l.Stdouts[local], l.Stderrs[local], l.TeeStdouts[local], l.TeeStderrs[local], l.ErrorFiles[local]}
		for _, path := range []*string{&w.teeOut, &w.teeErr, &w.ErrorFile} {
			if *path == os.DevNull {
				*path = ""
			}
		}
		changed[local] = envs[local]
		if given := l.Envs[local]; given != nil {
			changed[local] = given
		}
		if _, given := changed[local][EnvErrorFile]; !given {
			changed[local][EnvErrorFile] = w.ErrorFile
		}
		for name, value := range changed[local] {
			if name == "" || strings.Contains(name, "=") {
				return nil, nil, fmt.Errorf("the plug-in for logs: %q cannot be the name of a variable", name)
			}
			texts = append(texts, name, value)
		}
		texts = append(texts, w.out, w.err, w.teeOut, w.teeErr, w.ErrorFile)
		plan.Workers = append(plan.Workers, w)
	}
	for _, text := range texts {
		if strings.Contains(text, "\x00") {
			return nil, nil, fmt.Errorf("the plug-in for logs: %q holds a NUL", text)
		}
	}
	return plan, changed, nil
}

// openLog opens a file for a worker's output, or for filtered lines. A FIFO without a reader is
// an error, since opening it would block.
func openLog(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o666)
	if err == nil {
		if err = unix.SetNonblock(fd, false); err != nil {
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
