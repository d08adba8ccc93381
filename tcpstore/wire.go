package tcpstore

// magic is the argument of VALIDATE (docs/spec/tcpstore-wire.md 3).
const magic = 0x3C85F7CE

// opcode is the first byte of a request. The numbers are torch's, of 2.2 and
// newer; they are only appended to (docs/spec/tcpstore-wire.md 2).
type opcode byte

const (
	opValidate   opcode = 0x00
	opSet        opcode = 0x01
	opCompareSet opcode = 0x02
	opGet        opcode = 0x03
	opAdd        opcode = 0x04
	opCheck      opcode = 0x05
	opWait       opcode = 0x06
	opNumKeys    opcode = 0x07
	opDelete     opcode = 0x08
	opAppend     opcode = 0x09
	opMultiGet   opcode = 0x0a
	opMultiSet   opcode = 0x0b
	opCancelWait opcode = 0x0c
	opPing       opcode = 0x0d // sent by torch 2.5 and newer
	opQueuePush  opcode = 0x0e // the queues: 2.8
	opQueuePop   opcode = 0x0f
	opQueueLen   opcode = 0x10
	opListKeys   opcode = 0x11 // 2.10
	opBarrier    opcode = 0x12 // 2.12

	numOpcodes = 0x13
)

// Single-byte replies (docs/spec/tcpstore-wire.md 4).
const (
	replyReady        = 0x00 // CHECK
	replyNotReady     = 0x01
	replyStopWaiting  = 0x00 // WAIT, BARRIER
	replyWaitCanceled = 0x01 // CANCEL_WAIT
)

// probeKey is the key by which a client finds out whether the server answers a GET of a missing
// key, so that the client need not wait for the reply to a CHECK before it sends one: in a CHECK
// of nothing else Server calls it present. Torch's servers, which close the connection, call it
// missing, since clients' keys begin with "/" (docs/spec/tcpstore-wire.md 4.1).
const probeKey = "rallypoint/get-of-missing-is-empty"

// Limits of requests. The first three are those of torch's libuv server; a
// connection that exceeds one is closed (docs/spec/tcpstore-wire.md 7).
const (
	// MaxKeyBytes is the largest key on the wire, with the client's prefix.
	MaxKeyBytes = 8192

	// MaxValueBytes is the largest value in a request. Append can build larger ones.
	MaxValueBytes = 8 << 20

	// MaxKeys is the largest number of keys in one request.
	MaxKeys = 131072

	// MaxRequestBytes is the largest request, all fields together. torch has no
	// such limit; without one a MULTI_SET could claim 1 TiB of memory. It leaves
	// room for several values of the largest size.
	MaxRequestBytes = 64 << 20
)

// field is a kind of request argument.
type field byte

const (
	fieldUint32 field = iota
	fieldInt64
	fieldKey   // u64 length, bytes
	fieldValue // u64 length, bytes
	fieldKeys  // u64 count, then keys
	fieldPairs // u64 count, then key and value alternating
)

// operation describes one opcode: its name in logs and counters and the fields
// that follow it.
type operation struct {
	name   string
	fields []field
}

var operations = [numOpcodes]operation{
	opValidate:   {"VALIDATE", []field{fieldUint32}},
	opSet:        {"SET", []field{fieldKey, fieldValue}},
	opCompareSet: {"COMPARE_SET", []field{fieldKey, fieldValue, fieldValue}},
	opGet:        {"GET", []field{fieldKey}},
	opAdd:        {"ADD", []field{fieldKey, fieldInt64}},
	opCheck:      {"CHECK", []field{fieldKeys}},
	opWait:       {"WAIT", []field{fieldKeys}},
	opNumKeys:    {"GETNUMKEYS", nil},
	opDelete:     {"DELETE_KEY", []field{fieldKey}},
	opAppend:     {"APPEND", []field{fieldKey, fieldValue}},
	opMultiGet:   {"MULTI_GET", []field{fieldKeys}},
	opMultiSet:   {"MULTI_SET", []field{fieldPairs}},
	opCancelWait: {"CANCEL_WAIT", nil},
	opPing:       {"PING", []field{fieldUint32}},
	opQueuePush:  {"QUEUE_PUSH", []field{fieldKey, fieldValue}},
	opQueuePop:   {"QUEUE_POP", []field{fieldKey}},
	opQueueLen:   {"QUEUE_LEN", []field{fieldKey}},
	opListKeys:   {"LIST_KEYS", nil},
	opBarrier:    {"BARRIER", []field{fieldKey, fieldInt64}},
}

func (op opcode) String() string { return operations[op].name }
