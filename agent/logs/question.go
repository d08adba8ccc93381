package logs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"rallypoint/agent/question"
	"rallypoint/core/store"
	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
)

// Kind is the kind of question that asks the agents of a round for their workers' output.
const Kind = "logs"

// Request is a question's text.
type Request struct {
	Rank    int  `json:"rank"`    // negative: of all ranks
	Culprit bool `json:"culprit"` // of the worker that failed first, in the last round in which one has
	Follow  bool `json:"follow"`  // and what they write from now on, see question.Parts
	Bytes   int  `json:"bytes"`   // of a node at most
}

// Node is a node's answer.
type Node struct {
	Host    string `json:"host"`
	First   int    `json:"first"` // rank of its workers
	Workers int    `json:"workers"`
	Round   uint64 `json:"round"`   // of what follows
	Failure string `json:"failure"` // of the culprit
	Refused string `json:"refused"` // why nobody more can follow; "": it can
	Parts   []Part `json:"logs"`    // null of a node of an older release
}

const (
	maxNodeBytes = 4 << 20 // of the streams
	maxNode      = 8 << 20 // as JSON
	maxParts     = 4096
	maxName      = 256
	maxRank      = 1 << 24
)

// Encode makes JSON of a request or of an answer.
func Encode[T Request | Node](v T) []byte {
	text, _ := json.Marshal(v) // these types cannot fail
	return text
}

// DecodeRequest reads a question, which may be anything: workers can write into the store, too.
func DecodeRequest(text []byte) (r Request, err error) {
	if err := json.Unmarshal(text, &r); err != nil {
		return r, err
	}
	r.Bytes = max(0, min(r.Bytes, maxNodeBytes))
	return r, nil
}

// DecodeNode reads an answer, which may be anything.
func DecodeNode(text []byte) (n Node, err error) {
	if len(text) > maxNode {
		return n, fmt.Errorf("an answer of %d bytes, at most %d are allowed", len(text), maxNode)
	}
	if err := json.Unmarshal(text, &n); err != nil {
		return n, err
	}
	n.Host, n.Refused = pack.CutText(printable.Text(n.Host), maxName), pack.CutText(printable.Text(n.Refused), maxName)
	n.Failure = pack.CutText(printable.Text(n.Failure), 4*maxName)
	if len(n.Parts) > maxParts || n.First < 0 || n.First > maxRank || n.Workers < 0 || n.Workers > maxRank {
		return n, errors.New("an answer that cannot be")
	}
	for i := range n.Parts {
		p := &n.Parts[i]
		if len(p.Ranks) == 0 || len(p.Ranks) > maxParts || p.At < 0 || len(p.Text) > Kept {
			return n, errors.New("an answer with a stream that cannot be")
		}
		for _, rank := range p.Ranks {
			if rank < 0 || rank > maxRank {
				return n, errors.New("an answer with ranks that cannot be")
			}
		}
		p.Stream, p.Why = pack.CutText(printable.Text(p.Stream), maxName), pack.CutText(printable.Text(p.Why), maxName)
	}
	return n, nil
}

// Ask asks the agents of a round with that many nodes, and returns the question's number and
// their answers; see question.Ask.
func Ask(ctx context.Context, s store.Store, nodes int, r Request, cleanup time.Duration) (number int64, answers []*Node, err error) {
	return question.Ask(ctx, s, nodes, Kind, Encode(r), cleanup, func(text []byte) Node {
		n, err := DecodeNode(text)
		if err != nil {
			return Node{}
		}
		return n
	})
}

// Drawing matches the control sequences of terminals: colours, cursor movements, window titles.
var Drawing = regexp.MustCompile(`\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_=>78])`)

// Text makes a worker's output printable: lines of visible characters, without colours. Of a line
// that was redrawn, such as a progress bar, it keeps the last version.
func Text(text []byte) string {
	lines := strings.Split(Drawing.ReplaceAllString(string(text), ""), "\n")
	for i, line := range lines {
		line = strings.TrimRight(line, "\r")
		lines[i] = printable.Text(line[strings.LastIndexByte(line, '\r')+1:])
	}
	return strings.Join(lines, "\n")
}
