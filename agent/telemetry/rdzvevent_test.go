package telemetry

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestSentencesOfTheHandler: torch's handler in Python records the same steps in the same
// words as an agent does, but for the nodes that a round continues without, which the C ABI
// does not tell it.
func TestSentencesOfTheHandler(t *testing.T) {
	const begin = "The node '%'"
	sentences := func(path string, verbs, joint *regexp.Regexp) map[string]bool {
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := joint.ReplaceAllString(string(source), "")
		found := make(map[string]bool)
		for _, literal := range regexp.MustCompile(`"(The node '[^"\n]*)"`).FindAllStringSubmatch(text, -1) {
			found[strings.ReplaceAll(verbs.ReplaceAllString(literal[1], "%"), "%%", "%")] = true
		}
		return found
	}
	own := sentences("rdzvevent.go", regexp.MustCompile(`%(\[\d+\])?[sd]`), regexp.MustCompile(`"\s*\+\s*"`))
	theirs := sentences("../../python/rallypoint/handler.py", regexp.MustCompile(`%\(\w+\)[sd]`), regexp.MustCompile(`"\n\s*"`))
	if !own[begin+" has closed the rendezvous '%'."] || len(theirs) < 6 {
		t.Fatalf("only %d sentences here, %d there", len(own), len(theirs))
	}
	for _, sentence := range slices.Sorted(maps.Keys(theirs)) {
		if !own[sentence] {
			t.Errorf("the handler says %q, the agent does not", sentence)
		}
	}
}
