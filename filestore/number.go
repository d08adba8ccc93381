package filestore

import (
	"fmt"

	"rallypoint/core/store"
)

// parseNumber is store.ParseNumber, but for an empty value, which the reference
// takes for 0 in a file (docs/spec/filestore-format.md 4).
func parseNumber(value []byte) (int64, error) {
	if len(value) == 0 {
		return 0, nil
	}
	n, err := store.ParseNumber(value)
	if err != nil {
		return 0, fmt.Errorf("%w: %.32q", err, value)
	}
	return n, nil
}
