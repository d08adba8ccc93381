package changewatch

import (
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/fsnotify/fsnotify"

	"rallypoint/internal/wake"
)

// Files watches any number of files of this machine's own file systems. A nil Files
// watches none.
type Files struct {
	notify *fsnotify.Watcher
	done   chan struct{}

	mu      sync.Mutex
	watched []*watchedFile
}

type watchedFile struct {
	path    string // by which fsnotify names it
	info    os.FileInfo
	changed []wake.Signal
}

// NewFiles returns nil if the system gives this user no more watchers.
func NewFiles() *Files {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil
	}
	f := &Files{notify: notify, done: make(chan struct{})}
	go f.run()
	return f
}

// Watch returns a channel that has a token whenever the file may have been written since
// the last token was taken, and that is closed when the file is watched no more: it was
// renamed, say. Watch returns nil if the file cannot be watched.
func (f *Files) Watch(path string) <-chan struct{} {
	if f == nil {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	changed := wake.New()
	f.mu.Lock()
	for _, w := range f.watched {
		if os.SameFile(w.info, info) {
			w.changed = append(w.changed, changed)
			f.mu.Unlock()
			return changed
		}
	}
	w := &watchedFile{path: filepath.Clean(path), info: info, changed: []wake.Signal{changed}}
	f.watched = append(f.watched, w)
	f.mu.Unlock()
	if f.notify.Add(w.path) != nil { // run may hold mu, and fsnotify its own lock meanwhile
		f.forget(func(other *watchedFile) bool { return other == w })
		return nil
	}
	return changed
}

// Close ends all watches and waits for them.
func (f *Files) Close() {
	if f == nil {
		return
	}
	_ = f.notify.Close()
	<-f.done
}

func (f *Files) run() {
	defer close(f.done)
	for {
		select {
		case event, ok := <-f.notify.Events:
			if !ok {
				return
			}
			f.offer(func(w *watchedFile) bool { return w.path == event.Name })
			if event.Has(fsnotify.Rename) || event.Has(fsnotify.Remove) {
				f.forget(func(w *watchedFile) bool { return w.path == event.Name })
			}
		case _, ok := <-f.notify.Errors:
			if !ok {
				return
			}
			f.offer(func(*watchedFile) bool { return true }) // events may have been lost
		}
	}
}

// offer puts a token into the channels of these files that have none.
func (f *Files) offer(of func(*watchedFile) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.watched {
		if !of(w) {
			continue
		}
		for _, changed := range w.changed {
			changed.Set()
		}
	}
}

// forget closes the channels of these files, which are watched no more.
func (f *Files) forget(gone func(*watchedFile) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watched = slices.DeleteFunc(f.watched, func(w *watchedFile) bool {
		if !gone(w) {
			return false
		}
		for _, changed := range w.changed {
			close(changed)
		}
		return true
	})
}
