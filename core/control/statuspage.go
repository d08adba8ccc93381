package control

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"
	"sync"

	"rallypoint/internal/httpport"
)

// document is the page that a browser shows of /status: static, and it reads that from where it came, and nothing else.
//
//go:embed status.html
var document []byte

// pagePolicy is the Content-Security-Policy of the page: its own script and style by their
// hashes, requests to its own origin, and no string that becomes markup.
var pagePolicy = sync.OnceValue(func() string {
	return strings.Join([]string{
		"default-src 'none'",
		"script-src " + hashOf("script"),
		"style-src " + hashOf("style"),
		"img-src data:",
		"connect-src 'self'",
		"base-uri 'none'",
		"form-action 'none'",
		"frame-ancestors 'none'",
		"require-trusted-types-for 'script'",
		"trusted-types 'none'",
	}, "; ")
})

// hashOf is the source expression of the one element of that name.
func hashOf(element string) string {
	_, rest, _ := bytes.Cut(document, []byte("<"+element+">"))
	text, _, _ := bytes.Cut(rest, []byte("</"+element+">"))
	sum := sha256.Sum256(text)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// wantsPage reports whether a request asks for a page and not for text: a browser that
// follows a link says text/html, curl and scrapers do not.
func wantsPage(r *http.Request) bool {
	return strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "text/html")
}

// servePage answers with the page.
func servePage(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Security-Policy", pagePolicy())
	h.Set("Vary", "Accept")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	httpport.Answer(w, http.StatusOK, "text/html; charset=utf-8", document)
}
