package run

import "strings"

// Suggestion is "; did you mean --NAME?" with the one of names that a mistyped option
// is nearest to, "" if none is near.
func Suggestion(option string, names []string) string {
	option, _, _ = strings.Cut(option, "=")
	option = strings.ReplaceAll(strings.Trim(option, "-_"), "_", "-")
	best, least := "", min(max(2, len(option)/4)+1, len(option))
	for _, name := range names {
		if n := distance(option, name); n < least {
			best, least = name, n
		}
	}
	if best == "" || option == "" {
		return ""
	}
	return "; did you mean --" + best + "?"
}

// distance is how many letters have to be added, left out or replaced to make b of a
// (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0] // of the row above, to the left
		row[0] = i + 1
		for j := range len(b) {
			replaced := before
			if a[i] != b[j] {
				replaced++
			}
			before = row[j+1]
			row[j+1] = min(replaced, before+1, row[j]+1)
		}
	}
	return row[len(b)]
}
