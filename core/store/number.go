package store

import "math"

// ParseNumber reads a decimal number as C's strtoll does: leading white space and
// one sign are skipped, and what follows the digits is ignored. No digits, and a
// number outside int64, are ErrNotNumber (docs/spec/tcpstore-wire.md 4.3).
func ParseNumber(text []byte) (int64, error) {
	i := 0
	for i < len(text) && (text[i] == ' ' || text[i] >= '\t' && text[i] <= '\r') {
		i++
	}
	negative := false
	if i < len(text) && (text[i] == '-' || text[i] == '+') {
		negative = text[i] == '-'
		i++
	}
	limit := uint64(math.MaxInt64)
	if negative {
		limit++
	}
	start, n := i, uint64(0)
	for ; i < len(text) && text[i] >= '0' && text[i] <= '9'; i++ {
		digit := uint64(text[i] - '0')
		if n > (limit-digit)/10 {
			return 0, ErrNotNumber
		}
		n = n*10 + digit
	}
	if i == start {
		return 0, ErrNotNumber
	}
	if negative {
		return -int64(n), nil
	}
	return int64(n), nil
}
