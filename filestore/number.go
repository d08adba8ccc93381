package filestore

import (
	"bytes"
	"fmt"
	"strconv"

	"rallypoint/core/store"
)

// parseNumber reads a decimal number as the reference does, with C's strtoll:
// leading white space is skipped, what follows the digits is ignored. Nothing at
// all is 0. No digits, and a number outside int64, are ErrNotNumber
// (docs/spec/filestore-format.md 4).
func parseNumber(value []byte) (int64, error) {
	if len(value) == 0 {
		return 0, nil
	}
	digits := bytes.TrimLeft(value, " \t\n\v\f\r")
	end := 0
	if end < len(digits) && (digits[end] == '-' || digits[end] == '+') {
		end++
	}
	for end < len(digits) && digits[end] >= '0' && digits[end] <= '9' {
		end++
	}
	n, err := strconv.ParseInt(string(digits[:end]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %.32q", store.ErrNotNumber, value)
	}
	return n, nil
}
