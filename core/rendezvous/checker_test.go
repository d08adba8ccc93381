package rendezvous_test

import (
	"rallypoint/conformance"
	"rallypoint/core/rendezvous"
)

func init() {
	rendezvous.NewJudge = func(runID string) rendezvous.Judge { return judge{conformance.New(runID)} }
}

// judge judges every history that the tests of this package make.
type judge struct{ *conformance.Checker }

func (j judge) Found() (texts []string) {
	for _, b := range j.Violations() {
		texts = append(texts, b.String())
	}
	return texts
}
