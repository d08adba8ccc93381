package backend

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	rallypoint "rallypoint"
	"rallypoint/core/control/client"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
)

// maxPage is the most that is read of an HTTP answer. The status of 10 000 nodes has 2 MB, and that of
// as many as a run may have 27.
const maxPage = 64 << 20

// Get fetches a page on a connection of its own, without a proxy: a control
// plane is near. addr may list its servers, separated by commas; one that does not host names
// the one that does. runID is the run that the page is about, "" for all that the token opens.
// Get uses no http.Transport, which would add its own words about servers that speak first, and
// 0.4 MB to the library.
func Get(ctx context.Context, addr string, token *secret.Token, path, runID string) (code int, contentType string, body []byte, err error) {
	query := url.Values{}
	if run := runFor(runID, token); run != "" {
		query.Set("rdzv_id", run)
	}
	final := func(err error) bool { return errors.Is(err, rendezvous.ErrAuth) || errors.Is(err, rendezvous.ErrState) }
	p, err := client.AskHost(ctx, addr, final, func(ctx context.Context, addr string) (page, error) {
		return getAt(ctx, addr, token, path, query)
	})
	return p.code, p.kind, p.body, err
}

// runFor is the run to ask for, "" for all: a run's token opens no other run.
func runFor(runID string, token *secret.Token) string {
	if runID == "" && token != nil {
		return token.Run()
	}
	return runID
}

type page struct {
	code int
	kind string
	body []byte
}

// getAt asks one server; a *wire.Redirected if that is not the one that hosts.
func getAt(ctx context.Context, addr string, token *secret.Token, path string, query url.Values) (p page, err error) {
	conn, err := client.DialHTTP(ctx, addr, token)
	if err != nil {
		return p, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	req := &http.Request{
		Method: http.MethodGet, URL: &url.URL{Scheme: "http", Host: addr, Path: path, RawQuery: query.Encode()},
		Header: http.Header{"User-Agent": {"rallypoint/" + rallypoint.Version()}}, Close: true,
	}
	if err := req.Write(conn); err != nil {
		return p, err
	}
	limited := &io.LimitedReader{R: conn, N: maxPage}
	defer func() {
		if limited.N == 0 {
			p, err = page{}, fmt.Errorf("the answer of %s is longer than %d MiB, so that it is none of a control plane", addr, maxPage>>20)
		}
	}()
	resp, err := http.ReadResponse(bufio.NewReader(limited), req)
	if err != nil {
		return p, err
	}
	defer resp.Body.Close()
	p.body, err = io.ReadAll(resp.Body)
	p.code, p.kind = resp.StatusCode, resp.Header.Get("Content-Type")
	if to, wrong := resp.Location(); p.code == http.StatusTemporaryRedirect && wrong == nil {
		if at, wrong := netip.ParseAddrPort(to.Host); wrong == nil { // no other page, and no name
			return page{}, &wire.Redirected{To: wire.Redirect{Host: at.String()}}
		}
	}
	return p, err
}
