package register

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
)

// Phase is what the writer of a record is about to do.
type Phase int

// The phases.
const (
	Leads Phase = iota // it leads
	Left               // it leads no more; others of its nodes go on
	Over               // it leads no more, and no node is left that could come back: the run may begin again
)

// Record is what the register has about a run.
type Record struct {
	RunID   string
	Group   string // drawn at random by the leader of term 1
	Term    uint64
	Leader  string // drawn at random by each leader
	Node    string // of the leader
	Addr    string // "host:port" of its control plane
	Machine string // names the machine and the network in which Addr is its own; "": not known
	Beat    uint64 // grows with each write of a leader
	Lease   time.Duration
	Phase   Phase
	Facts   rendezvous.Facts
	Ended   *rendezvous.Ended // while Over: how the run was closed, if it stays so for a time; nil: it does not
}

// Bounds of a record.
const (
	maxRecord  = 256 << 10
	maxAddress = 512
	maxDrawn   = 64
	maxTerm    = 1 << 48

	recordName    = "rallypoint leader"
	recordVersion = 1
)

// errForeign is the error of a value that is no record.
var errForeign = errors.New("it is no record of a run's leader that this release can read")

// Encode returns the record as the register keeps it.
func (r *Record) Encode() ([]byte, error) {
	b, err := pack.AppendFit(nil, func(p *pack.Packer) {
		p.List(15)
		p.Text(recordName)
		p.Uint(recordVersion)
		p.Text(r.RunID)
		p.Text(r.Group)
		p.Uint(r.Term)
		p.Text(r.Leader)
		p.Text(r.Node)
		p.Text(r.Addr)
		p.Text(r.Machine)
		p.Uint(r.Beat)
		p.Duration(r.Lease)
		p.Int(int(r.Phase))
		p.Bytes(rendezvous.EncodeFacts(r.Facts))
		p.Bytes(encodeEnded(r.Ended))
		p.None() // of a later release
	})
	if err == nil && len(b) > maxRecord {
		err = fmt.Errorf("it has %d bytes, at most %d are allowed", len(b), maxRecord)
	}
	return b, err
}

func encodeEnded(e *rendezvous.Ended) []byte {
	if e == nil {
		return nil
	}
	b, err := rendezvous.EncodeEvent(*e)
	if err != nil {
		return nil
	}
	return b
}

// Decode reads a record.
func Decode(b []byte) (*Record, error) {
	if len(b) > maxRecord {
		return nil, errForeign
	}
	u := pack.NewUnpacker(b)
	defer u.Release()
	u.Open()
	name, version := u.Text(maxDrawn), u.Uint()
	if u.Err() != nil || name != recordName || version != recordVersion {
		return nil, errForeign
	}
	r := &Record{
		RunID: u.Text(rendezvous.MaxNameLen), Group: u.Text(maxDrawn), Term: u.Uint(), Leader: u.Text(maxDrawn), Node: u.Text(rendezvous.MaxNameLen),
		Addr: u.Text(maxAddress), Machine: u.Text(maxAddress), Beat: u.Uint(), Lease: u.Duration(), Phase: Phase(u.Int()),
	}
	facts, ended := u.Bytes(maxRecord), u.Bytes(maxRecord)
	u.Close()
	u.End()
	if err := u.Err(); err != nil {
		return nil, errForeign
	}
	var err error
	if r.Facts, err = rendezvous.DecodeFacts(facts); err != nil || !r.possible() {
		return nil, errForeign
	}
	if len(ended) > 0 {
		ev, err := rendezvous.DecodeEvent(ended)
		e, is := ev.(rendezvous.Ended)
		if err != nil || !is {
			return nil, errForeign
		}
		r.Ended = &e
	}
	return r, nil
}

// possible reports whether a leader can have written the record.
func (r *Record) possible() bool {
	_, port, err := net.SplitHostPort(r.Addr)
	number, wrong := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil, wrong != nil, number == 0, printable.Text(r.Addr) != r.Addr, printable.Text(r.Node) != r.Node:
		return false
	case r.Group == "", r.Leader == "", r.Term == 0, r.Term > maxTerm, r.Lease <= 0, r.Lease > rendezvous.MaxTimeout:
		return false
	case r.Phase < Leads, r.Phase > Over:
		return false
	}
	return true
}

// Forget has a run that has ended begin again with its next node, if its record is still the one given.
func Forget(ctx context.Context, reg Register, was *Record) error {
	state, token, err := reg.GetState(ctx)
	if err != nil || state == nil {
		return err
	}
	r, err := Decode(state)
	if err != nil {
		return err
	}
	if r.Leader != was.Leader || r.Phase != Over {
		return rendezvous.Errorf(rendezvous.CodeConnection, "run %q has begun meanwhile", r.RunID)
	}
	r.Ended = nil
	data, err := r.Encode()
	if err != nil {
		return err
	}
	_, _, ok, err := store(ctx, reg, data, token, 0)
	if err == nil && !ok {
		err = rendezvous.Errorf(rendezvous.CodeConnection, "run %q has begun meanwhile", r.RunID)
	}
	return err
}
