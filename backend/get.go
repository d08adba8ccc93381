package backend

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	rallypoint "rallypoint"
	"rallypoint/core/control/client"
	"rallypoint/core/secret"
)

// maxPage bounds what is read of an HTTP answer: the status of 10 000 nodes has
// 2 MB.
const maxPage = 256 << 20

// Get fetches a page on a connection of its own, without a proxy: a control
// plane is near. It uses no http.Transport, which would add its own
// words about servers that speak first, and 0.4 MB to the library.
func Get(ctx context.Context, addr string, token *secret.Token, path string, query url.Values) (code int, contentType string, body []byte, err error) {
	conn, err := client.DialHTTP(ctx, addr, token)
	if err != nil {
		return 0, "", nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	req := &http.Request{
		Method: http.MethodGet, URL: &url.URL{Scheme: "http", Host: addr, Path: path, RawQuery: query.Encode()},
		Header: http.Header{"User-Agent": {"rallypoint/" + rallypoint.Version()}}, Close: true,
	}
	if err := req.Write(conn); err != nil {
		return 0, "", nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(io.LimitReader(conn, maxPage)), req)
	if err != nil {
		return 0, "", nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header.Get("Content-Type"), body, err
}
