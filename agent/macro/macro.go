// Package macro replaces $name and ${name} in workers' arguments and in prefixes of logs.
package macro

import "strings"

// Substitute replaces $name and ${name} in text by its value, as Python's
// string.Template.safe_substitute does: a name that is not in values stays as it
// is, and $$ becomes $. Names are ASCII letters, digits and _.
func Substitute(text string, values map[string]string) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		if strings.HasPrefix(rest, "$") {
			b.WriteByte('$')
			text = rest[1:]
			continue
		}
		name, length := macroName(rest)
		if value, ok := values[name]; ok && name != "" {
			b.WriteString(value)
			text = rest[length:]
			continue
		}
		b.WriteByte('$')
		text = rest
	}
}

// macroName returns the name at the start of text, which follows a $, and how
// many bytes it takes with its braces; "" if there is none.
func macroName(text string) (name string, length int) {
	braced := strings.HasPrefix(text, "{")
	body := strings.TrimPrefix(text, "{")
	n := 0
	for n < len(body) && isNameByte(body[n], n == 0) {
		n++
	}
	if !braced {
		return body[:n], n
	}
	if n == len(body) || body[n] != '}' {
		return "", 0
	}
	return body[:n], n + 2
}

func isNameByte(c byte, first bool) bool {
	letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
	return letter || !first && '0' <= c && c <= '9'
}
