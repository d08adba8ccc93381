package testkit

import "net"

// Pieces is a connection whose writes arrive cut into pieces of these lengths, in turn.
type Pieces struct {
	net.Conn
	Of   []int
	next int
}

func (p *Pieces) Write(b []byte) (int, error) {
	for sent := 0; sent < len(b); {
		n := min(p.Of[p.next%len(p.Of)], len(b)-sent)
		p.next++
		if _, err := p.Conn.Write(b[sent : sent+n]); err != nil {
			return sent, err
		}
		sent += n
	}
	return len(b), nil
}
