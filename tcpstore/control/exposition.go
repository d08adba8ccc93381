package control

import (
	"bytes"
	"math"
	"strconv"
	"strings"
)

// expositionType is the content type of Prometheus's text format. It is written
// here rather than by prometheus/client_golang, which would make the library
// 2.8 MB larger and its start slower by a millisecond, mostly for protobuf.
const expositionType = "text/plain; version=0.0.4; charset=utf-8"

// exposition writes metrics in that format.
type exposition struct{ buf bytes.Buffer }

// family begins a metric: all its samples follow.
func (e *exposition) family(name, kind, help string) {
	e.buf.WriteString("# HELP " + name + " " + escapeHelp.Replace(help) + "\n# TYPE " + name + " " + kind + "\n")
}

// sample writes one value; labels are names and values by turns.
func (e *exposition) sample(name string, value float64, labels ...string) {
	e.buf.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		open := byte(',')
		if i == 0 {
			open = '{'
		}
		e.buf.WriteByte(open)
		e.buf.WriteString(labels[i] + `="`)
		e.buf.WriteString(escapeLabel.Replace(strings.ToValidUTF8(labels[i+1], "\uFFFD")))
		e.buf.WriteByte('"')
	}
	if len(labels) > 0 {
		e.buf.WriteByte('}')
	}
	e.buf.WriteByte(' ')
	e.buf.WriteString(number(value))
	e.buf.WriteByte('\n')
}

// single is a metric of one sample.
func (e *exposition) single(name, kind, help string, value float64) {
	e.family(name, kind, help)
	e.sample(name, value)
}

// histogram writes the samples of a histogram without labels.
func (e *exposition) histogram(name string, h *histogram) {
	total := uint64(0)
	for i, bound := range roundBuckets {
		total += h.counts[i].Load()
		e.sample(name+"_bucket", float64(total), "le", number(bound))
	}
	total += h.counts[len(roundBuckets)].Load()
	e.sample(name+"_bucket", float64(total), "le", "+Inf")
	e.sample(name+"_sum", float64(h.sum.Load())/1e9)
	e.sample(name+"_count", float64(total))
}

var (
	escapeHelp  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	escapeLabel = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
