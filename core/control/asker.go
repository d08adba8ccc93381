package control

import (
	"net"
	"net/http"

	"rallypoint/core/control/wire"
	"rallypoint/core/peer"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/rebinding"
)

// asker is who has sent a request of HTTP.
type asker struct {
	conn   net.Conn
	proven bool // it knows the token
}

// askerKey is the key of a request's asker.
type askerKey struct{}

// guarded answers who may ask: everyone where there is no token, or with Config.HTTPOpen;
// else those that have proven themselves, and this process's user on this machine who asks
// by a name of ours. Whether the server lives is no secret.
func (p *pages) guarded(next http.Handler) http.Handler {
	cfg := &p.server.cfg
	if cfg.Token == nil || cfg.HTTPOpen {
		return next
	}
	var users rendezvous.LoopbackUsers
	if cfg.Node != nil {
		users = cfg.Node.LoopbackUsers
	}
	own := peer.NewLoopbackCheck(users)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, _ := r.Context().Value(askerKey{}).(asker)
		switch {
		case a.proven, r.URL.Path == "/healthz":
			next.ServeHTTP(w, r)
		case !a.near() || own.Admit(a.conn) != nil:
			p.server.metrics.refused[refusedAuth].Add(1)
			answer(w, http.StatusForbidden, plainText, []byte(wire.ErrAuth.Text+"\n"))
		case !p.names.Own(r):
			p.server.metrics.refused[refusedHost].Add(1)
			answer(w, rebinding.Code, plainText, []byte(rebinding.Text+"\n"))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// near reports whether the asker's address is a loopback one.
func (a asker) near() bool {
	if a.conn == nil {
		return false
	}
	tcp, ok := a.conn.RemoteAddr().(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
