package run

import (
	"slices"
	"strings"

	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

// Suggestion is "; did you mean --NAME?" with the one of names that a mistyped option
// is nearest to, "" if none is near.
func Suggestion(option string, names []string) string {
	option, _, _ = strings.Cut(option, "=")
	best := Nearest(strings.ReplaceAll(strings.Trim(option, "-_"), "_", "-"), names)
	if best == "" {
		return ""
	}
	return "; did you mean --" + best + "?"
}

// Nearest is the one of names that a mistyped word is nearest to, "" if none is near.
func Nearest(word string, names []string) (best string) {
	least := min(max(2, len(word)/4)+1, len(word))
	for _, name := range names {
		if n := wording.Distance(word, name); n < least {
			best, least = name, n
		}
	}
	return best
}

// misspelled warns of variables that name no option, but nearly do.
func misspelled(env environ) (warnings []string) {
	var names []string
	for i := range optionTable {
		names = append(names, optionTable[i].variable())
	}
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, petPrefix) || slices.Contains(names, name) {
			continue
		}
		if near := Nearest(name, names); near != "" {
			warnings = append(warnings, "the environment variable "+printable.Text(name)+" is no option's; did you mean "+near+"?")
		}
	}
	return warnings
}
