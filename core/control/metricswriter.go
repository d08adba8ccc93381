package control

import "rallypoint/internal/promtext"

const expositionType = promtext.ContentType

// exposition writes metrics in Prometheus's text format.
type metricsWriter struct{ buf promtext.Buffer }

func (e *metricsWriter) family(name, kind, help string) { e.buf.Family(name, kind, help) }

func (e *metricsWriter) sample(name string, value float64, labels ...string) {
	e.buf.Sample(name, value, labels...)
}

func (e *metricsWriter) single(name, kind, help string, value float64) {
	e.buf.Single(name, kind, help, value)
}

// histogram writes the samples of a histogram without labels.
func (e *metricsWriter) histogram(name string, h *histogram, bounds *[len(roundBuckets)]float64) {
	total := uint64(0)
	for i, bound := range bounds {
		total += h.counts[i].Load()
		e.sample(name+"_bucket", float64(total), "le", promtext.Number(bound))
	}
	total += h.counts[len(bounds)].Load()
	e.sample(name+"_bucket", float64(total), "le", "+Inf")
	e.sample(name+"_sum", float64(h.sum.Load())/1e9)
	e.sample(name+"_count", float64(total))
}
