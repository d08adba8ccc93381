package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"rallypoint/core/control"
	"rallypoint/core/control/client"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
)

// checkControl is what to do about a control plane that does not answer.
const checkControl = `check that the job's first node or "rallypoint serve" runs, and that this is the job's --rdzv-endpoint`

// statusQuery asks a control plane for its status.
type statusQuery struct {
	addr      string
	sharedLog string // endpoint without a control plane, asked instead of addr; "": none
	run       string // "": all runs
	token     *secret.Token
	timeout   time.Duration
}

// fetch returns the status as it came and decoded. It blocks until the answer is
// there, at most for the timeout.
func (q statusQuery) fetch(ctx context.Context) ([]byte, control.Status, error) {
	if q.sharedLog != "" {
		return q.fetchFromLog(ctx)
	}
	var st control.Status
	start := time.Now()
	limited, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	query := url.Values{}
	if q.run != "" {
		query.Set("rdzv_id", q.run)
	}
	code, kind, body, err := httpGet(limited, q.addr, q.token, "/status", query)
	isJSON := strings.HasPrefix(kind, "application/json")
	var none control.NoRun
	switch {
	case ctx.Err() != nil:
		return nil, st, ctx.Err()
	case errors.Is(err, rendezvous.ErrAuth), errors.Is(err, rendezvous.ErrState):
		return nil, st, failure{err}
	case code == http.StatusForbidden:
		return nil, st, failed("authentication failed: the control plane at %s wants a token: give its file by --token-file or %s", q.addr, rendezvous.EnvTokenFile)
	case err != nil && endedEarly(err) && isTCPStore(ctx, q.addr):
		return nil, st, failed("what listens at %s is a TCPStore (a MASTER_PORT, or a round's store), not a control plane; "+
			"the control plane's port is that of the job's --rdzv-endpoint, %d by default", q.addr, client.DefaultPort)
	case err != nil && endedEarly(err):
		return nil, st, failed("what listens at %s is no Rallypoint control plane: %w; %s", q.addr, err, checkControl)
	case err != nil:
		return nil, st, unreachable(q.addr, "a control plane", time.Since(start), checkControl, err)
	case code == http.StatusNotFound && isJSON && json.Unmarshal(body, &none) == nil && none.Error != "":
		return nil, st, failed("%s", none.Error)
	case code == http.StatusServiceUnavailable:
		return nil, st, failed("the control plane at %s has too many HTTP connections at this moment; try again", q.addr)
	case code != http.StatusOK || !isJSON:
		return nil, st, failed("what listens at %s answers HTTP with code %d, but is no Rallypoint control plane, or an older one; %s", q.addr, code, checkControl)
	}
	if err := json.Unmarshal(body, &st); err != nil || st.Schema < 1 {
		return nil, st, failed("the status at %s is not one that this version understands (schema %d): %v", q.addr, st.Schema, err)
	}
	return bytes.TrimSpace(body), st, nil
}

// endedEarly reports whether a server answered, but not in HTTP.
func endedEarly(err error) bool {
	text := err.Error()
	for _, sign := range []string{"EOF", "malformed HTTP", "connection reset", "broken pipe"} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	return false
}
