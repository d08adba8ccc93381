package httpport

import (
	"encoding/json"
	"net/http"
)

// PlainText is the type of an answer that is text.
const PlainText = "text/plain; charset=utf-8"

// Alive reports whether a request asks no more than whether the process lives.
func Alive(r *http.Request) bool { return r.URL.Path == "/healthz" || r.URL.Path == "/health" }

// Answer writes an answer that a browser neither keeps nor takes for another type.
func Answer(w http.ResponseWriter, code int, contentType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

// AnswerJSON answers with a value in JSON.
func AnswerJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // these types cannot fail
		Answer(w, http.StatusInternalServerError, PlainText, []byte(err.Error()+"\n"))
		return
	}
	Answer(w, code, "application/json", append(body, '\n'))
}
