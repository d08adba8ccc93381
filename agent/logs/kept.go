package logs

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"rallypoint/internal/changewatch"
	"rallypoint/internal/wake"
)

// Stream is what one worker writes to stdout or stderr, or what several write into one file. Its
// end can be read while they write: output that passes through the agent is kept in memory, and
// output to a file is in that file. Output that goes straight to a terminal or pipe of the agent's
// is not kept (docs/decisions/0124).
type Stream struct {
	Locals []int  // the workers that write there, by local rank
	Name   string // see NameOut
	Why    string // nothing of it is kept; "": its end is
	source source

	reading atomic.Bool // by a read that its file system holds up, too
}

// Names of streams.
const (
	NameOut  = "stdout"
	NameErr  = "stderr"
	NameBoth = "output" // stdout and stderr in one
)

// source is where the end of a stream is.
type source interface {
	// read returns the bytes from an offset on, at most the last most of them, and the offset of
	// the first.
	read(from int64, most int) (text []byte, at int64, err error)
}

// fileEnd is a file into which workers write; nil stands for none. It is safe for concurrent use.
type fileEnd struct {
	path     string
	start    int64        // others wrote the bytes before it; offsets count from here
	end      atomic.Int64 // others wrote the bytes after it; 0: nobody did
	dev, ino uint64       // of the file; ino 0: whichever has the path
}

// endOf is what is written from now on into the file of a descriptor, which may be for writing alone;
// nil if it is not a regular one.
func endOf(fd int) *fileEnd {
	var info unix.Stat_t
	if unix.Fstat(fd, &info) != nil || info.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	return &fileEnd{path: fmt.Sprintf("/proc/self/fd/%d", fd), start: info.Size, dev: info.Dev, ino: info.Ino}
}

// Ended notes that the worker which writes there has ended.
func (f *fileEnd) Ended() {
	if f == nil {
		return
	}
	if info, err := os.Stat(f.path); err == nil {
		f.end.Store(info.Size())
	}
}

// read implements source.
func (f *fileEnd) read(from int64, most int) (text []byte, at int64, err error) {
	file, info, err := openRegular(f.path, 0)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = file.Close() }()
	if is := info.Sys().(*syscall.Stat_t); f.ino != 0 && (is.Dev != f.dev || is.Ino != f.ino) {
		return nil, 0, fmt.Errorf("another file is open in its place")
	}
	size, start := info.Size(), f.start
	if end := f.end.Load(); end > 0 {
		size = min(size, end)
	}
	if start > size { // it was cut meanwhile
		start = 0
	}
	if from > size-start {
		from = 0
	}
	at = max(from, size-start-int64(most))
	text = make([]byte, size-start-at)
	n, err := file.ReadAt(text, start+at)
	if err == io.EOF {
		err = nil
	}
	return text[:n], at, err
}

// last returns the last Kept bytes; nil if they cannot be read, as of a FIFO or device.
func (f *fileEnd) last() []byte {
	if f == nil {
		return nil
	}
	text, _, err := f.read(0, Kept)
	if err != nil {
		return nil
	}
	return text
}

// Streams are the streams of workers that are about to start, whose stdin, stdout and stderr are
// these descriptors; nil for a worker that runs already.
func (a *Attempt) Streams(workers []Worker, files [][]uintptr) []*Stream {
	var list []*Stream
	known := make(map[any]*Stream)
	add := func(key any, local int, name, why string, from source) {
		s := known[key]
		if s == nil {
			s = &Stream{Name: name, Why: why, source: from}
			known[key] = s
			list = append(list, s)
		}
		if s.Name != name {
			s.Name = NameBoth
		}
		if !slices.Contains(s.Locals, local) {
			s.Locals = append(s.Locals, local)
		}
	}
	for local, w := range workers {
		if files[local] == nil { // not of this attempt
			continue
		}
		var paths Paths
		if a.Plan != nil {
			paths = a.Plan.Workers[local]
		}
		for _, std := range []struct {
			name, path string
			tee        *stderrTee
			fd         int
		}{{NameOut, paths.out, w.outTee, int(files[local][1])}, {NameErr, paths.err, w.tee, int(files[local][2])}} {
			end := endOf(std.fd)
			switch {
			case std.tee != nil:
				add(std.tee, local, std.name, "", &std.tee.ring)
			case std.path == os.DevNull:
				add([2]any{local, std.name}, local, std.name, "it goes to /dev/null", nil)
			case std.path != "":
				add(std.path, local, std.name, "", &fileEnd{path: std.path})
			case end != nil:
				add([2]uint64{end.dev, end.ino}, local, std.name, "", end)
			default:
				why := "it goes to " + kindOf(std.fd) + " without passing the agent; -r, -t and --fold-logs keep it"
				add([2]any{local, std.name}, local, std.name, why, nil)
			}
		}
	}
	return list
}

// Without returns the streams but for what some workers wrote.
func Without(streams []*Stream, locals []int) (rest []*Stream) {
	for _, s := range streams {
		left := slices.DeleteFunc(slices.Clone(s.Locals), func(local int) bool { return slices.Contains(locals, local) })
		if len(left) > 0 {
			rest = append(rest, &Stream{Locals: left, Name: s.Name, Why: s.Why, source: s.source})
		}
	}
	return rest
}

// kindOf names the kind of a descriptor that is not a regular file.
func kindOf(fd int) string {
	var info unix.Stat_t
	if unix.Fstat(fd, &info) != nil {
		return "a closed file"
	}
	switch info.Mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return "the agent's pipe"
	case unix.S_IFSOCK:
		return "the agent's socket"
	case unix.S_IFCHR:
		if info.Rdev == unix.Mkdev(1, 3) {
			return "/dev/null"
		}
		return "the agent's terminal"
	}
	return "a device"
}

// Part is a part of a stream.
type Part struct {
	Ranks  []int  `json:"ranks"` // that write there
	Stream string `json:"stream"`
	At     int64  `json:"at"` // how many bytes of the stream come before
	Text   []byte `json:"text"`
	Why    string `json:"why"` // it is not known; "" if it is
}

// Read returns for each stream the bytes from its offset on (from the beginning if from is nil),
// at most the last most of them. It does not wait for a file system beyond the end of ctx. base
// is the rank of the first worker.
func Read(ctx context.Context, streams []*Stream, base int, from []int64, most int) []Part {
	parts := make([]Part, len(streams))
	type answer struct {
		i    int
		text []byte
		at   int64
		err  error
	}
	answers := make(chan answer, len(streams))
	waiting := 0
	for i, s := range streams {
		parts[i] = Part{Ranks: []int{}, Stream: s.Name, Why: s.Why, Text: []byte{}}
		for _, local := range s.Locals {
			parts[i].Ranks = append(parts[i].Ranks, base+local)
		}
		if s.Why != "" {
			continue
		}
		parts[i].Why = "its file is not read in time"
		if !s.reading.CompareAndSwap(false, true) {
			continue
		}
		offset := int64(0)
		if from != nil {
			offset = from[i]
		}
		waiting++
		go func() { // ends when the file system answers
			text, at, err := s.source.read(offset, min(most, Kept))
			s.reading.Store(false)
			answers <- answer{i, text, at, err}
		}()
	}
	for ; waiting > 0; waiting-- {
		select {
		case a := <-answers:
			p := &parts[a.i]
			if p.Text, p.At, p.Why = a.text, a.at, ""; a.err != nil {
				p.Why = a.err.Error()
			}
		case <-ctx.Done():
			return parts
		}
	}
	return parts
}

// Watch sets a signal whenever something may have been written to streams, until ctx ends, and
// once when it has begun to watch.
func Watch(ctx context.Context, streams []*Stream, news wake.Signal) {
	files := changewatch.NewFiles()
	var wg sync.WaitGroup
	for _, s := range streams {
		switch from := s.source.(type) {
		case *ring:
			defer from.watch(news)()
		case *fileEnd:
			changed := files.Watch(from.path)
			wg.Go(func() {
				for {
					select {
					case _, watched := <-changed:
						if !watched {
							changed = nil
						}
					case <-poll(changed):
					case <-ctx.Done():
						return
					}
					news.Set()
				}
			})
		}
	}
	news.Set()
	<-ctx.Done()
	wg.Wait()
	files.Close()
}

// Among returns the streams into which the worker of a local rank writes; none if the node has no
// such worker.
func Among(streams []*Stream, local int) []*Stream {
	return slices.DeleteFunc(slices.Clone(streams), func(s *Stream) bool { return !slices.Contains(s.Locals, local) })
}
