// Package secret lets a control plane and its nodes prove to each other that they know the token.
// [Token] is the token's file, which is read again when it changes. [Transcript] makes and checks
// proofs, each bound to one TLS connection. [DialStore] and [AcceptStore] use it to open
// connections to round stores, package wire those to a control plane. [RunKey] derives a token
// for one run. The package keeps no connections, and takes no other lock while it holds one.
package secret

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
)

// Limits of a token file.
const (
	minToken = 32 // bytes: an attacker who has seen a proof cannot search for it
	maxToken = 512
	// maxTokens is how many tokens a file holds: an old and a new one, while it is changed.
	maxTokens    = 2
	maxTokenFile = 4 << 10 // bytes
	// tokenFresh is how long a file that looks unchanged is not read again.
	tokenFresh = time.Second
)

// Token is the secret that a control plane and its nodes share, kept in a file: a token a line,
// at most two. A peer that knows one of them is admitted, and can act as the control plane. The
// file is read again when it changes, so that a token can be changed while jobs run. A nil *Token
// stands for none. Its methods are safe for concurrent use.
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

// OpenToken reads a token file. The error is ErrInvalid if there is no such file, if it is not a
// regular one, if it has no token of 32 to 512 bytes or more than two, or if another user
// controls it: its owner is neither this user nor root, its group or others can write to it, or
// others can read it and it is not root's. It logs a warning if others can read root's file, such
// as a secret that is mounted into a container. A nil log discards.
func OpenToken(path string, log *slog.Logger) (*Token, error) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	t := &Token{path: path, log: log}
	if err := t.loadLocked(); err != nil {
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid, "the token file %s: %v", path, err)
	}
	return t, nil
}

// Path returns the name of the file.
func (t *Token) Path() string { return t.path }

// Keys returns the tokens that are valid now, the first line first. If the file has become
// unreadable, that is logged once, and the previous tokens stay valid.
func (t *Token) Keys() [][]byte {
	t.mu.Lock()
	err := t.loadLocked()
	log := err != nil && !t.faulty
	t.faulty = err != nil
	keys := t.keys
	t.mu.Unlock()
	if log {
		t.log.Warn("the token file cannot be used as it is now, what it held before counts on", "file", t.path, "error", err)
	}
	return keys
}

// loadLocked brings the tokens up to date. OpenToken calls it without the lock.
func (t *Token) loadLocked() error {
	var st unix.Stat_t
	if err := unix.Stat(t.path, &st); err != nil {
		return &os.PathError{Op: "stat", Path: t.path, Err: err}
	}
	if markOf(&st) == t.mark && time.Since(t.read) < tokenFresh {
		return nil
	}
	if err := checkFile(&st, os.Geteuid()); err != nil {
		return err
	}
	f, err := os.OpenFile(t.path, os.O_RDONLY|unix.O_NONBLOCK, 0) // it may be a FIFO by now
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &os.PathError{Op: "fstat", Path: t.path, Err: err}
	}
	if err := checkFile(&st, os.Geteuid()); err != nil {
		return err
	}
	keys, err := readTokens(f)
	if err != nil {
		return err
	}
	mark := markOf(&st)
	if st.Mode&unix.S_IROTH != 0 && mark != t.mark {
		t.log.Warn("anybody on this machine may read the token file; chmod 600 it", "file", t.path, "mode", fmt.Sprintf("%04o", st.Mode&0o7777))
	}
	t.mark, t.keys, t.read = mark, keys, time.Now()
	return nil
}

func markOf(st *unix.Stat_t) fileMark {
	return fileMark{st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim}
}

// checkFile refuses a file that another user than this one and root controls.
func checkFile(st *unix.Stat_t, self int) error {
	mode := st.Mode & 0o7777
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return errors.New("it is not a regular file")
	case st.Uid != 0 && int(st.Uid) != self:
		return fmt.Errorf("it belongs to user %d, this process to user %d: a token belongs to who uses it, or to root", st.Uid, self)
	case st.Mode&unix.S_IWOTH != 0:
		return fmt.Errorf("its mode is %04o: anybody on this machine may write it; chmod 600 it and write a new token", mode)
	case st.Mode&unix.S_IWGRP != 0:
		return fmt.Errorf("its mode is %04o: its group may write it; chmod 600 it and write a new token", mode)
	case st.Mode&unix.S_IROTH != 0 && st.Uid != 0:
		return fmt.Errorf("its mode is %04o: anybody on this machine may read it; chmod 600 it and write a new token", mode)
	}
	return nil
}

// NewToken makes a file with a token drawn at random, for this user alone. It never
// replaces one.
func NewToken(path string) error {
	key := make([]byte, minToken)
	_, _ = rand.Read(key) // never fails
	return WriteToken(path, []byte(hex.EncodeToString(key)))
}

// WriteToken makes a file with a token, for this user alone. It never replaces one.
func WriteToken(path string, token []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(bytes.Clone(token), '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

func readTokens(f io.Reader) ([][]byte, error) {
	text, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxTokenFile {
		return nil, fmt.Errorf("it has more than %d bytes", maxTokenFile)
	}
	return parseTokens(text)
}

// marks are the byte order marks of UTF-8 and UTF-16, which an editor writes unseen.
var marks = [][]byte{{0xef, 0xbb, 0xbf}, {0xff, 0xfe}, {0xfe, 0xff}}

// parseTokens takes a token from each line; surrounding space does not count. It refuses text that
// looks the same in an editor and is another token elsewhere.
func parseTokens(text []byte) ([][]byte, error) {
	if bytes.IndexByte(text, 0) >= 0 || slices.ContainsFunc(marks, func(mark []byte) bool { return bytes.HasPrefix(text, mark) }) {
		return nil, errors.New("it is no plain text, but has zero bytes or a byte order mark: save it without, or make one with `rallypoint token new`")
	}
	var keys [][]byte
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		switch {
		case len(line) == 0:
			continue
		case line[0] == '#': // it would be a token that can be guessed
			return nil, errors.New("a line begins with #: a token file has no comments, each line is a token")
		case len(line) < minToken || len(line) > maxToken:
			return nil, fmt.Errorf("a line has %d bytes, a token has %d to %d: make one with `rallypoint token new`", len(line), minToken, maxToken)
		case len(keys) == maxTokens:
			return nil, fmt.Errorf("it has more than %d lines: it holds one token, or a new and an old one", maxTokens)
		}
		keys = append(keys, line)
	}
	if len(keys) == 0 {
		return nil, errors.New("it is empty: make one with `rallypoint token new`")
	}
	if !oneRun(keys) {
		return nil, errors.New("its lines are not for the same run")
	}
	return keys, nil
}
