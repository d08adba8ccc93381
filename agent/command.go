package agent

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"rallypoint/agent/logs"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

const (
	maxCommandText = 120 // bytes
	maxScript      = 16 << 20
)

// command is what this node tells the others that it runs (docs/decisions/0146). It is the same on
// all nodes that run the same script, wherever they keep the script and the interpreter: what
// counts is the script's base name and contents, the arguments after it, and the number of workers.
func (s *Spec) command(entry string) rendezvous.Command {
	workers := wording.Count(s.Workers, "worker", "workers")
	sum := sha256.New()
	said, open := []string{s.Command}, 0 // so many words hold no secrets
	if s.Command == "" {
		at := scriptAt(s.Argv, entry)
		said, open = append([]string{filepath.Base(s.Argv[at])}, s.Argv[at+1:]...), 1
		switch {
		case at > 0 && s.Argv[at-1] == "-m":
			said[0] = "-m " + s.Argv[at]
		case at > 0 && s.Argv[at-1] == "-c":
			said[0], open = "-c "+s.Argv[at], 0
		case at > 0 || strings.Contains(s.Argv[at], "/"):
			sum.Write(scriptBody(s.Argv[at]))
		}
	}
	fmt.Fprintf(sum, "\x00%q, %s", said, workers)
	text := printable.Text(strings.Join(append(said[:open:open], withoutSecrets(said[open:])...), " "))
	if len(text) > maxCommandText {
		text = pack.CutText(text, maxCommandText) + "…"
	}
	return rendezvous.Command{Digest: hex.EncodeToString(sum.Sum(nil)[:16]), Text: text + " (" + workers + ")"}
}

var interpreter = regexp.MustCompile(`^python[0-9.]*$`)

// scriptAt is where in argv the script is that an interpreter runs, or the program if none does.
func scriptAt(argv []string, entry string) int {
	at := max(0, slices.Index(argv, entry))
	if !interpreter.MatchString(filepath.Base(argv[at])) {
		return at
	}
	rest := slices.IndexFunc(argv[at+1:], func(arg string) bool { return !strings.HasPrefix(arg, "-") })
	return at + 1 + rest // the interpreter, if there is no script
}

// scriptBody is a script but for its first line if that names an interpreter, which may be elsewhere on
// each node; nothing of what is no script.
func scriptBody(path string) []byte {
	text, _ := logs.ReadRegular(path, maxScript)
	switch {
	case bytes.HasPrefix(text, []byte("\x7fELF")):
		return nil
	case bytes.HasPrefix(text, []byte("#!")):
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	return text
}

// secretName matches what precedes values that nobody else should see, and urlUser a user and
// password.
var (
	secretName = regexp.MustCompile(`(?i)(token([^a-z]|$)|secret|passw|passphrase|credential|authorization|(api|access|private).?key|sig(nature)?=)`)
	urlUser    = regexp.MustCompile(`://[^/@\s]+@`)
)

func withoutSecrets(args []string) []string {
	shown := make([]string, 0, len(args))
	hide := false // the value of the flag before
	for _, arg := range args {
		at, flag := secretName.FindStringIndex(arg), strings.HasPrefix(arg, "-")
		switch {
		case at != nil:
			hide = flag && !strings.Contains(arg, "=")
			arg = arg[:at[1]] + "…"
		case hide && !flag:
			hide, arg = false, "…"
		default:
			hide, arg = false, urlUser.ReplaceAllString(arg, "://…@")
		}
		shown = append(shown, arg)
	}
	return shown
}
