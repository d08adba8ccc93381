package etcdtest

import (
	"context"
	"crypto/rand"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"rallypoint/internal/etcdclient"
)

// LossyNetwork is a network that loses answers of calls that were carried out, and
// that says of others that they failed and carries them out later, when the caller has
// long made them again, and perhaps done something else.
type LossyNetwork struct {
	Fate func(c UnaryCall, tries int) Fate // of a call of which this is the n-th try

	mu      sync.Mutex
	tries   map[string]int // by what is called
	late    []UnaryCall
	Failed  int // how many calls failed
	between grpc.UnaryClientInterceptor
	again   *clientv3.Client // carries out what is late
}

// UnaryCall is a call that can be made again.
type UnaryCall struct {
	Method         string
	request, reply proto.Message
}

// Clone returns a call with messages of its own.
func (u UnaryCall) Clone() UnaryCall {
	return UnaryCall{u.Method, proto.Clone(u.request), u.reply.ProtoReflect().New().Interface()}
}

// CarryOut makes the call by another connection, which outlives the client's.
func (l *LossyNetwork) CarryOut(c UnaryCall) error {
	return l.again.ActiveConnection().Invoke(context.Background(), c.Method, c.request, c.reply)
}

// randomBelow draws a number from 0 to n-1.
func randomBelow(n int) int {
	var b [1]byte
	rand.Read(b[:])
	return int(b[0]) % n
}

// MethodTxn is the method of a transaction.
const MethodTxn = "/etcdserverpb.KV/Txn"

// Fate is what becomes of a call.
type Fate int

const (
	Kept Fate = iota
	Late      // it fails and is carried out later
	Lost      // it is carried out and fails
)

var errForgotten = status.Error(codes.Unavailable, "the answer was lost")

func (l *LossyNetwork) intercept(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	call := UnaryCall{method, request.(proto.Message), reply.(proto.Message)}
	if randomBelow(4) == 0 && l.Fate == nil {
		l.Deliver(1)
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(call.request)
	if err != nil {
		return err
	}
	l.mu.Lock()
	name := method + string(body)
	l.tries[name]++
	f := Fate([]int{0, 0, 0, 0, 1, 2}[randomBelow(6)])
	if l.Fate != nil {
		f = l.Fate(call, l.tries[name])
	}
	if f != Kept {
		l.Failed++
	}
	if f == Late {
		l.late = append(l.late, call.Clone())
	}
	l.mu.Unlock()
	if f == Late {
		return errForgotten
	}
	err = invoke(ctx, method, request, reply, conn, options...)
	if err == nil && f == Lost {
		return errForgotten
	}
	return err
}

// Deliver carries out up to so many of the late calls, in their order, and returns how
// many.
func (l *LossyNetwork) Deliver(count int) (done int) {
	for ; done < count; done++ {
		l.mu.Lock()
		if len(l.late) == 0 {
			l.mu.Unlock()
			break
		}
		c := l.late[0]
		l.late = l.late[1:]
		l.mu.Unlock()
		_ = l.CarryOut(c)
	}
	return done
}

// MakeLossy puts such a network below a client. Unless told otherwise a third of the calls
// is lost or late.
func MakeLossy(c *etcdclient.Client, t interface {
	Fatal(...any)
	Cleanup(func())
}) *LossyNetwork {
	again, err := clientv3.New(clientv3.Config{Endpoints: c.Etcd.Endpoints(), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { again.Close() })
	n := &LossyNetwork{again: again, tries: make(map[string]int)}
	n.between = n.intercept
	c.Interceptor.Store(&n.between)
	return n
}
