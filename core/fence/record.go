package fence

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
	"unicode/utf8"

	"rallypoint/internal/host"
	"rallypoint/internal/printable"
)

const (
	maxRecord = 8 << 10 // bytes of a record
	maxText   = 256     // bytes of each of its texts
)

// Writer is the process that a record names.
type Writer struct {
	Run        string    `json:"run,omitempty"`
	Generation string    `json:"generation,omitempty"`
	Round      uint64    `json:"round,omitempty"`
	Machine    string    `json:"machine"`
	PID        int       `json:"pid"`
	Time       time.Time `json:"time"` // of the write, by the writer's clock; for people alone
}

// record says which version of a checkpoint is the present one, and who wrote it. Fields are
// only added; those that this version does not know are ignored.
type record struct {
	Version  string `json:"version"`
	Previous string `json:"previous,omitempty"` // "" for the first
	Writer
}

// NewWriter returns this process as its environment describes it: run, generation and round are
// what an agent gives to its workers.
func NewWriter(getenv func(string) string) Writer {
	round, _ := strconv.ParseUint(getenv("RALLYPOINT_ROUND"), 10, 64)
	return Writer{
		Run:        getenv("TORCHELASTIC_RUN_ID"),
		Generation: getenv("RALLYPOINT_GENERATION"),
		Round:      round,
		Machine:    host.Name(),
		PID:        os.Getpid(),
	}
}

// encode returns the record as it is stored, its texts cut to maxText.
func (r record) encode() []byte {
	for _, text := range []*string{&r.Run, &r.Generation, &r.Machine} {
		*text = cut(*text)
	}
	r.Time = r.Time.UTC().Truncate(time.Millisecond)
	encoded, _ := json.Marshal(r) // of texts, numbers and a time of this century
	return append(encoded, '\n')
}

// decode reads a record. Nothing in it is trusted: the version is the only field that must be
// there, and texts are made printable.
func decode(encoded []byte) (r record, err error) {
	if len(encoded) > maxRecord {
		return record{}, fmt.Errorf("it has more than %d bytes", maxRecord)
	}
	if err := json.Unmarshal(encoded, &r); err != nil {
		return record{}, err
	}
	if !isVersion(r.Version) || r.Previous != "" && !isVersion(r.Previous) {
		return record{}, errors.New("it names no version")
	}
	for _, text := range []*string{&r.Run, &r.Generation, &r.Machine} {
		*text = cut(printable.Text(*text))
	}
	return r, nil
}

// isVersion reports whether text has the form of a version: 32 hexadecimal digits.
func isVersion(text string) bool {
	_, err := hex.DecodeString(text)
	return err == nil && len(text) == 32
}

// cut returns the text, cut between two characters if it is too long.
func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	end := maxText
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// String names the writer for a message.
func (w Writer) String() string {
	text := ""
	if w.Run != "" {
		text = fmt.Sprintf("run %q, ", w.Run)
	}
	if w.Generation != "" {
		text += "generation " + w.Generation + ", "
	}
	if w.Round > 0 {
		text += fmt.Sprintf("round %d, ", w.Round)
	}
	text += fmt.Sprintf("process %d on %s", w.PID, cmp.Or(w.Machine, "an unknown machine"))
	if !w.Time.IsZero() {
		text += w.Time.UTC().Format(", 2006-01-02 15:04:05 UTC")
	}
	return text
}
