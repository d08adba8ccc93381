// Package promtext writes metrics in Prometheus's text format.
package promtext

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// ContentType is that of the text format. It is written here rather than by
// prometheus/client_golang, which would make the library 2.8 MB larger and its
// start slower by a millisecond, mostly for protobuf.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Buffer collects metrics. The zero value is empty.
type Buffer struct{ buf bytes.Buffer }

// Bytes is what was collected.
func (b *Buffer) Bytes() []byte { return b.buf.Bytes() }

// Family begins a metric: all its samples follow. kind is "gauge", "counter", "summary" or
// "histogram".
func (b *Buffer) Family(name, kind, help string) {
	b.buf.WriteString("# HELP " + name + " " + escapeHelp.Replace(help) + "\n# TYPE " + name + " " + kind + "\n")
}

// Sample writes one value; labels are names and values by turns.
func (b *Buffer) Sample(name string, value float64, labels ...string) {
	b.buf.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		open := byte(',')
		if i == 0 {
			open = '{'
		}
		b.buf.WriteByte(open)
		b.buf.WriteString(labels[i] + `="`)
		b.buf.WriteString(escapeLabel.Replace(visible(labels[i+1])))
		b.buf.WriteByte('"')
	}
	if len(labels) > 0 {
		b.buf.WriteByte('}')
	}
	b.buf.WriteByte(' ')
	b.buf.WriteString(Number(value))
	b.buf.WriteByte('\n')
}

// Single is a metric of one sample without labels.
func (b *Buffer) Single(name, kind, help string, value float64) {
	b.Family(name, kind, help)
	b.Sample(name, value)
}

var (
	escapeHelp  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	escapeLabel = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// visible is a label's value without what a terminal would obey: such characters are written as Go
// does in a string (\x1b, \u202e).
func visible(value string) string {
	value = strings.ToValidUTF8(value, "\uFFFD")
	if strings.IndexFunc(value, isHidden) < 0 {
		return value
	}
	var b strings.Builder
	for _, r := range value {
		if isHidden(r) {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// isHidden reports whether a character has to be escaped; a line feed has an escape of the format.
func isHidden(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }

// Number is a value as the format writes it.
func Number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
