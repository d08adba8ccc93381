package rendezvous_test

import (
	"rallypoint/conformance"
	"rallypoint/core/rendezvous"
)

func init() {
	rendezvous.NewChecker = func(runID string) rendezvous.Checker { return checker{conformance.New(runID)} }
}

// checker checks every history that the tests of this package make.
type checker struct{ *conformance.Checker }

func (c checker) Found() (texts []string) {
	for _, b := range c.Violations() {
		texts = append(texts, b.String())
	}
	return texts
}
