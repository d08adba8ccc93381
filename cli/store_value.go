package cli

import (
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"rallypoint/tcpstore"
)

type valueFormat struct{ raw, hex bool }

func (v *valueFormat) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&v.raw, "raw", false, "print the value's bytes as they are and nothing else")
	cmd.Flags().BoolVar(&v.hex, "hex", false, "print the value in hexadecimal")
	cmd.MarkFlagsMutuallyExclusive("raw", "hex")
}

// print writes a value. Without a format it is a line of text, quoted as Go does
// it where it is no text that a terminal could show.
func (v *valueFormat) print(out io.Writer, value []byte) error {
	text := string(value)
	switch {
	case v.raw:
	case v.hex:
		text = hex.EncodeToString(value) + "\n"
	default:
		text = quoted(text)
		if !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
	}
	return printTo(out, "the value", text)
}

// quoted returns a text as it is if all of it can be shown, else quoted.
func quoted(text string) string {
	if !utf8.ValidString(text) {
		return strconv.Quote(text)
	}
	for _, r := range text {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return strconv.Quote(text)
		}
	}
	return text
}

// readValue takes a value from the command line, or from stdin where it is "-".
func readValue(cmd *cobra.Command, arg string) ([]byte, error) {
	if arg != "-" {
		return []byte(arg), nil
	}
	value, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), tcpstore.MaxValueBytes+1))
	switch {
	case err != nil:
		return nil, failed("reading the value from stdin: %w", err)
	case len(value) > tcpstore.MaxValueBytes:
		return nil, failed("the value on stdin has more than %d bytes, which is the limit", tcpstore.MaxValueBytes)
	}
	return value, nil
}

func parseAmount(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("AMOUNT is %q, expected a whole number of 64 bits", text)
	}
	return n, nil
}
