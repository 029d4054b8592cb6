package idemtest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
)

// HTTP makes a Kit.Handler of a web server. request makes the request of a delivery anew each time, as its sender does;
// handler makes the server, on the connections of db. An answer of 2xx is the acknowledgement; after any other the
// request is sent again. A 2xx that is written while a transaction with writes is still open fails DoubleSubmit: it
// cannot tell of a COMMIT that fails.
//
//	Handler: idemtest.HTTP(
//		func(e Event) *http.Request { return httptest.NewRequest("POST", "/webhook", bytes.NewReader(e.Body)) },
//		func(db *idemtest.DB) http.Handler { return NewServer(db.Pool()) }),
func HTTP[D any](
	request func(d D) *http.Request, handler func(db *DB) http.Handler,
) func(db *DB) func(context.Context, D) error {
	return func(db *DB) func(context.Context, D) error {
		h := handler(db)
		return func(ctx context.Context, d D) error {
			w := &answer{ResponseRecorder: httptest.NewRecorder(), db: db}
			h.ServeHTTP(w, request(d).WithContext(ctx))
			if err := ctx.Err(); err != nil {
				return err // whoever sent the request has gone, and sees no answer
			}
			if code := w.Code; code < 200 || code > 299 { // where nothing is written it is 200, as with net/http
				return fmt.Errorf("answered %d %s", code, http.StatusText(code))
			}
			return nil
		}
	}
}

// answer is a response that notices when its status is written.
type answer struct {
	*httptest.ResponseRecorder
	db      *DB
	started bool
}

func (w *answer) begin(code int) {
	if w.started || code < 200 || code > 299 {
		return
	}
	w.started = true
	if w.db.wire.writing() {
		w.db.mu.Lock()
		w.db.answeredEarly = true
		w.db.mu.Unlock()
	}
}

// WriteHeader implements http.ResponseWriter.
func (w *answer) WriteHeader(code int) {
	w.begin(code)
	w.ResponseRecorder.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *answer) Write(b []byte) (int, error) {
	w.begin(http.StatusOK)
	return w.ResponseRecorder.Write(b)
}

// WriteString implements io.StringWriter.
func (w *answer) WriteString(s string) (int, error) {
	w.begin(http.StatusOK)
	return w.ResponseRecorder.WriteString(s)
}

// Flush implements http.Flusher.
func (w *answer) Flush() {
	w.begin(http.StatusOK)
	w.ResponseRecorder.Flush()
}
