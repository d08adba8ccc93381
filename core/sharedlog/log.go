package sharedlog

import (
	"context"
	"errors"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/training"
)

// Log is a totally ordered log of entries that all nodes of one run share, with the heartbeats of
// these nodes. An implementation is for one run and one node.
//
// The total order is all that a log promises about time: two nodes that have both
// read up to an index have read the same entries. An index is any number that
// grows from entry to entry; 0 is before the first entry. Entries are opaque here,
// at most [MaxEntry] bytes each.
//
// All methods may block on I/O and return soon after ctx has ended. Open comes
// first and is repeated until it succeeds, Close comes last and may come at any
// time, also while other methods run, which then return. Between the two, methods
// may be called at the same time, but no method by two goroutines at once, except
// that Latest and Next are called by the same one.
//
// Errors. An *rendezvous.Error (wrapped or not) whose code is not Retryable is
// final: the log has failed for good, the replica fails with that error, which
// says what is wrong and what to do (not allowed, no locks, foreign content, the
// directory is gone). Every other error means that the log is out of reach just
// now: the replica tells its observer, and repeats the call after a pause. Open is
// different: its caller gives it ReadTimeout, and an implementation returns early,
// with any code, when it knows that waiting will not help.
type Log interface {
	// Open reaches the log and creates it if there is none for this run, or if the present one was
	// left by nodes that are all proven gone: nodes that show no heartbeat may be cut off and come
	// back. It returns the log's properties for the replica. It is [ErrSlow] if it may succeed when
	// it is tried again, although the log is not out of reach.
	Open(ctx context.Context) (Info, error)

	// Append appends the entries, in this order, and returns when they are in the
	// log for good: no crash of any node loses them then. Other nodes' entries may
	// come between them. After an error, some, all or none of them may be in the
	// log (or still get there); the replica appends them again, which does no harm.
	Append(ctx context.Context, entries [][]byte) error

	// Next returns the entries with an index above after, in order and without a gap, as many as
	// are at hand; it waits until there is one, or until Batch's Snapshot has changed. It is
	// [ErrCompacted] if entries that follow after are gone: the replica then continues from
	// Latest.
	Next(ctx context.Context, after uint64) (Batch, error)

	// Latest returns the latest snapshot, or the zero Snapshot.
	Latest(ctx context.Context) (Snapshot, error)

	// Snapshot stores the state after the entries up to s.Index, so that these can be dropped.
	// Keeping the last few spares slow readers a Latest. If there is a later snapshot already,
	// Snapshot does nothing.
	Snapshot(ctx context.Context, s Snapshot) error

	// Heartbeat shows the others that this node is alive under the name session. It
	// comes before the session's Hello is appended, then at least every quarter of
	// lease. When session is another one than at the last call, the heartbeat of the
	// last one is taken back: this node has begun again.
	Heartbeat(ctx context.Context, session rendezvous.SessionID, lease time.Duration) error

	// ReadHeartbeats returns the heartbeats of sessions, one each in their order. They may
	// be as old as this node's own last heartbeat that got through.
	ReadHeartbeats(ctx context.Context, sessions []rendezvous.SessionID) ([]Liveness, error)

	// Close releases everything, and takes this node's heartbeat back. If all
	// others are proven gone, the log may be removed. It returns within a second or so
	// after ctx has ended, some seconds if it waits for a process that dies.
	Close(ctx context.Context) error
}

// ReportCarrier is a Log that publishes the progress of this node's workers with its heartbeats,
// for processes that inspect the run. The goroutine that calls Heartbeat calls CarryReport
// before. CarryReport does no I/O: that heartbeat and each later one carry the report. nil is no
// report.
type ReportCarrier interface {
	CarryReport(r *training.Report)
}

// NodeCounter is a Log that reads and locks less often the more nodes share it. SetNodes tells
// it how many are alive. It does no I/O, and may be called at any time.
type NodeCounter interface {
	SetNodes(n int)
}

// Info describes a log that was opened.
type Info struct {
	// Generation names this log, the same for all nodes that meet in it and never
	// used before: it is drawn at random by the node that creates the log.
	Generation string

	// SeenAddr is this node's address as others can reach it, as far as the log
	// knows: the source address of its connection to a server. "" if it cannot know.
	SeenAddr string

	// ServerAddr is the address of that server on the same connection, "" if there
	// is none. A node that sees the server by its loopback is reached by others
	// under the address by which they see the server (docs/decisions/0033).
	ServerAddr string

	// SnapshotEntries and SnapshotBytes say when a snapshot is due: when more was
	// appended since the last one than either. 0 is a default.
	SnapshotEntries int
	SnapshotBytes   int

	// MaxEntry is the largest entry that this log takes, in bytes; 0 is [MaxEntry].
	// A request that needs a larger one is refused with ErrTooLarge.
	MaxEntry int

	// ManyNodes is from how many nodes on the log costs each of them much more than a control
	// plane would; 0: there is no such number. The node of rank 0 warns above it.
	ManyNodes int

	// HeartbeatReadInterval is the least time between two calls of ReadHeartbeats; 0 is a default. A
	// node that dies is noticed so much later at least.
	HeartbeatReadInterval time.Duration
}

// Batch is some entries in a row.
type Batch struct {
	Entries []Entry
	// Snapshot is the index of the latest snapshot, as far as this node knows.
	Snapshot uint64
}

// Entry is one entry of a log.
type Entry struct {
	Index uint64
	Data  []byte // not changed any more, neither by the log nor by its reader
}

// Snapshot is the state after all entries up to Index.
type Snapshot struct {
	Index uint64
	State []byte
}

// Liveness is one node's view of another node's heartbeat.
type Liveness struct {
	State LivenessState
	// Heartbeats is any number that changes with each heartbeat, while State is
	// LivenessHeartbeats. The replica tells by its own clock how long ago it last changed.
	Heartbeats uint64
}

// LivenessState is what a log knows about a node's process.
type LivenessState int

// The states.
const (
	// LivenessHeartbeats: the log knows no more than Heartbeats. A session that the log has
	// never seen has Heartbeats 0.
	LivenessHeartbeats LivenessState = iota
	// LivenessDisconnected: the process has ended, or lost its connection, without a goodbye.
	// The machine gives it ReconnectGrace; the node, should it live, sees the
	// Disconnect in the log and says hello again.
	LivenessDisconnected
	// LivenessExpired: the log keeps leases itself, and this one has run out.
	LivenessExpired
)

// MaxEntry bounds an entry, in bytes; a request to a hosted control plane has at
// most half of it. A snapshot may be larger.
const MaxEntry = 4 << 20

// ErrCompacted is returned by Next when the entries asked for are gone.
var ErrCompacted = errors.New("the entries were dropped after a snapshot")

// ErrMoved is the error of an append after a certain entry that another entry follows already.
var ErrMoved = errors.New("another entry was appended before")

// ErrSlow matches the error of an Open that took longer than a heartbeat lasts.
var ErrSlow = errors.New("too slow for the lease")
