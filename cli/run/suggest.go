package run

import (
	"strings"

	"rallypoint/internal/wording"
)

// Suggestion is "; did you mean --NAME?" with the one of names that a mistyped option
// is nearest to, "" if none is near.
func Suggestion(option string, names []string) string {
	option, _, _ = strings.Cut(option, "=")
	option = strings.ReplaceAll(strings.Trim(option, "-_"), "_", "-")
	best, least := "", min(max(2, len(option)/4)+1, len(option))
	for _, name := range names {
		if n := wording.Distance(option, name); n < least {
			best, least = name, n
		}
	}
	if best == "" || option == "" {
		return ""
	}
	return "; did you mean --" + best + "?"
}
