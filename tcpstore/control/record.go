package control

import "rallypoint/core/rendezvous"

// resultKind numbers the results of a reply; append-only.
type resultKind uint64

const (
	resultNone resultKind = iota
	resultOutcome
	resultKey
	resultWithdrawn
)

// error writes two fields; a code of 0 is no error.
func (p *packer) error(err *rendezvous.Error) {
	if err == nil {
		p.int(0)
		p.none()
		return
	}
	p.int(int64(err.Code))
	p.cut(err.Text, maxText)
}

func (u *unpacker) error() *rendezvous.Error {
	code, text := u.int(), u.text(maxText)
	if code == 0 || u.err != nil {
		return nil
	}
	return &rendezvous.Error{Code: rendezvous.Code(code), Text: text}
}

func (p *packer) policy(v rendezvous.Policy) {
	p.list(10)
	p.int(int64(v.Min))
	p.int(int64(v.Max))
	p.int(int64(v.NodeUnit))
	p.int(int64(v.Target))
	p.duration(v.LastCallTimeout)
	p.duration(v.QuietPeriod)
	p.duration(v.RegroupTimeout)
	p.duration(v.AdmitDelay)
	p.duration(v.LeaseTimeout)
	p.duration(v.ReconnectGrace)
}

func (u *unpacker) policy() rendezvous.Policy {
	u.open()
	v := rendezvous.Policy{
		Min: u.int(), Max: u.int(), NodeUnit: u.int(), Target: u.int(),
		LastCallTimeout: u.duration(), QuietPeriod: u.duration(), RegroupTimeout: u.duration(),
		AdmitDelay: u.duration(), LeaseTimeout: u.duration(), ReconnectGrace: u.duration(),
	}
	u.close()
	return v
}

func (p *packer) claim(v rendezvous.Claim) {
	p.list(6)
	p.text(v.Generation)
	p.uint(v.Round)
	p.int(int64(v.Rank))
	p.int(int64(v.World))
	p.int(int64(v.HostRank))
	p.bool(v.Finished)
}

func (u *unpacker) claim() rendezvous.Claim {
	u.open()
	v := rendezvous.Claim{
		Generation: u.text(maxName), Round: u.uint(), Rank: u.int(), World: u.int(),
		HostRank: u.intOr(-1), Finished: u.bool(),
	}
	u.close()
	return v
}

func (p *packer) notice(v rendezvous.Notice) {
	p.list(3)
	p.int(int64(v.Waiting))
	p.bool(v.Closed)
	p.cut(v.Reason, maxText)
}

func (u *unpacker) notice() rendezvous.Notice {
	u.open()
	v := rendezvous.Notice{Waiting: u.int(), Closed: u.bool(), Reason: u.text(maxText)}
	u.close()
	return v
}

// result writes two fields: the kind and its list.
func (p *packer) result(r rendezvous.Result) {
	switch v := r.(type) {
	case rendezvous.Outcome:
		p.uint(uint64(resultOutcome))
		p.list(8)
		p.text(v.Generation)
		p.uint(v.Round)
		p.int(int64(v.Rank))
		p.int(int64(v.World))
		p.int(int64(v.HostRank))
		p.text(v.StoreAddr)
		p.int(int64(v.StorePort))
		p.cuts(v.Dropped, maxDropped, maxText)
	case rendezvous.KeyResult:
		p.uint(uint64(resultKey))
		p.list(4)
		p.values(v.Values)
		p.texts(v.Keys)
		p.int(v.Number)
		p.bool(v.Ready)
	case rendezvous.Withdrawn:
		p.uint(uint64(resultWithdrawn))
		p.list(3)
		p.bool(v.Completed)
		p.cut(v.Progress.Headline, maxText)
		p.cut(v.Progress.Detail, maxText)
	default:
		p.uint(uint64(resultNone))
		p.list(0)
	}
}

func (u *unpacker) result() rendezvous.Result {
	kind := resultKind(u.uint())
	u.open()
	defer u.close()
	switch kind {
	case resultNone:
		return nil
	case resultOutcome:
		return rendezvous.Outcome{
			Generation: u.text(maxName), Round: u.uint(), Rank: u.int(), World: u.int(), HostRank: u.intOr(-1),
			StoreAddr: u.text(maxName), StorePort: u.int(), Dropped: u.texts(maxDropped, maxText),
		}
	case resultKey:
		return rendezvous.KeyResult{
			Values: u.values(maxFrame), Keys: u.texts(maxFrame, maxKey), Number: u.int64(), Ready: u.bool(),
		}
	case resultWithdrawn:
		return rendezvous.Withdrawn{
			Completed: u.bool(), Progress: rendezvous.Progress{Headline: u.text(maxText), Detail: u.text(maxText)},
		}
	}
	u.fail("a reply with the result kind %d", kind)
	return nil
}

func (p *packer) values(list [][]byte) {
	p.list(len(list))
	for _, v := range list {
		p.bytes(v)
	}
}

func (u *unpacker) values(count int) [][]byte {
	var list [][]byte
	n := u.open()
	if n > count {
		u.fail("a list of %d values where %d are allowed", n, count)
	}
	for range n {
		if u.err != nil {
			break
		}
		list = append(list, u.bytes(maxFrame))
	}
	u.close()
	return list
}

// cuts writes the first count texts, each shortened.
func (p *packer) cuts(list []string, count, most int) {
	list = list[:min(len(list), count)]
	p.list(len(list))
	for _, s := range list {
		p.cut(s, most)
	}
}
