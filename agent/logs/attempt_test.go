package logs

import (
	"testing"

	"rallypoint/internal/filetest"
)

// TestOnlyFilesAreTailed: what a worker left in the place of a file does not hold the
// attempt up.
func TestOnlyFilesAreTailed(t *testing.T) {
	filetest.AtFIFO(t, func(path string) {
		if text := (&fileEnd{path: path}).last(); text != nil {
			t.Errorf("the last lines of a FIFO: %q", text)
		}
	})
}

// TestJobPrefix: a short run id stays, but for what separates folders.
func TestJobPrefix(t *testing.T) {
	if got := jobPrefix("a/b"); got != "a_b_" {
		t.Errorf("a short run id became %q", got)
	}
}
