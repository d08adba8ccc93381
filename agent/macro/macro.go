// Package macro replaces $name and ${name} in workers' arguments and in prefixes of logs.
package macro

import (
	"regexp"
	"strings"
	"sync"
)

// reference matches what Substitute may replace. It is compiled when it is first needed, since
// what a package compiles costs each command's start.
var reference = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\$(?:\$|[A-Za-z_]\w*|\{[A-Za-z_]\w*\})`)
})

// Substitute replaces $name and ${name} in text by its value, as Python's
// string.Template.safe_substitute does: a name that is not in values stays as it
// is, and $$ becomes $. Names are ASCII letters, digits and _.
func Substitute(text string, values map[string]string) string {
	if !strings.Contains(text, "$") {
		return text
	}
	return reference().ReplaceAllStringFunc(text, func(found string) string {
		if found == "$$" {
			return "$"
		}
		if value, ok := values[strings.Trim(found, "${}")]; ok {
			return value
		}
		return found
	})
}
