package control

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
)

// Limits of a token file.
const (
	minToken     = 16 // bytes: what a network peer could not guess
	maxToken     = 512
	maxTokens    = 2       // an old and a new one, while it is changed
	maxTokenFile = 4 << 10 // bytes
	// tokenFresh is how long a file that looks unchanged is not read again.
	tokenFresh = time.Second
)

// Token is the secret that a control plane and its nodes share, kept in a file: a
// token a line, at most two. Whoever knows one of them is let in and is believed
// to be the control plane. The file is read again when it changes, so that a
// token can be changed while jobs run. A nil *Token stands for none. Its methods
// are safe for concurrent use.
type Token struct {
	path string
	log  *slog.Logger

	mu     sync.Mutex
	mark   fileMark
	read   time.Time
	keys   [][]byte
	faulty bool // the last look found no good file; it was logged
}

// fileMark changes with a file.
type fileMark struct {
	device, inode  uint64
	size           int64
	written, moved unix.Timespec
}

// OpenToken reads a token file. It is ErrInvalid if there is none, if it holds no
// token of 16 to 512 bytes or more than two, or if anybody may write it. A file
// that anybody may read is logged as a warning. A nil log discards.
func OpenToken(path string, log *slog.Logger) (*Token, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	t := &Token{path: path, log: log}
	if err := t.load(); err != nil {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "the token file %s: %v", path, err)
	}
	return t, nil
}

// secrets returns the tokens that count now, the first line first. A file that
// has become unreadable is logged once, and what it held before counts on.
func (t *Token) secrets() [][]byte {
	t.mu.Lock()
	err := t.load()
	log := err != nil && !t.faulty
	t.faulty = err != nil
	keys := t.keys
	t.mu.Unlock()
	if log {
		t.log.Warn("the token file cannot be used as it is now, what it held before counts on", "file", t.path, "error", err)
	}
	return keys
}

// load brings the tokens up to date; mu is held but by OpenToken.
func (t *Token) load() error {
	var st unix.Stat_t
	if err := unix.Stat(t.path, &st); err != nil {
		return &os.PathError{Op: "stat", Path: t.path, Err: err}
	}
	mark := fileMark{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}
	if mark == t.mark && time.Since(t.read) < tokenFresh {
		return nil
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errors.New("it is no regular file")
	case st.Mode&unix.S_IWOTH != 0:
		return fmt.Errorf("its mode is %04o: anybody on this machine may write it; chmod 600 it and write a new token", st.Mode&0o7777)
	}
	keys, err := readTokens(t.path)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IROTH != 0 && mark != t.mark {
		t.log.Warn("anybody on this machine may read the token file; chmod 600 it", "file", t.path, "mode", fmt.Sprintf("%04o", st.Mode&0o7777))
	}
	t.mark, t.keys, t.read = mark, keys, time.Now()
	return nil
}

func readTokens(path string) ([][]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxTokenFile {
		return nil, fmt.Errorf("it has more than %d bytes", maxTokenFile)
	}
	return parseTokens(text)
}

// parseTokens takes a token from each line; surrounding space does not count.
func parseTokens(text []byte) ([][]byte, error) {
	var keys [][]byte
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		switch {
		case len(line) == 0:
			continue
		case len(line) < minToken || len(line) > maxToken:
			return nil, fmt.Errorf("a line has %d bytes, a token has %d to %d: write one with `openssl rand -hex 32`", len(line), minToken, maxToken)
		case len(keys) == maxTokens:
			return nil, fmt.Errorf("it has more than %d lines: it holds one token, or a new and an old one", maxTokens)
		}
		keys = append(keys, line)
	}
	if len(keys) == 0 {
		return nil, errors.New("it is empty: write a token with `openssl rand -hex 32`")
	}
	return keys, nil
}
