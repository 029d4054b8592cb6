package idem_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
)

func TestHTTPStatus(t *testing.T) {
	t.Parallel()
	server := func(code string) error { return &idem.Error{Stage: "claim", Err: &pgconn.PgError{Code: code}} }
	of := func(err error) error { return &idem.Error{Stage: "claim", Err: err} }
	for name, tc := range map[string]struct {
		err   error
		want  int
		after time.Duration
	}{
		"executed or duplicate": {nil, 200, 0},
		"in progress":           {of(idem.ErrInProgress), 409, time.Second},
		"unfinished":            {of(idem.ErrUnfinished), 409, 0},
		"lost lease":            {of(idem.ErrLostLease), 409, time.Second},
		"unknown at a provider": {of(idem.ErrUnknown), 500, 0},
		"other payload":         {of(idem.ErrPayloadMismatch), 422, 0},
		"expired":               {of(idem.ErrExpired), 422, 0},
		"future":                {of(idem.ErrFuture), 422, 0},
		"final failure":         {of(&idem.FinalError{}), 422, 0},
		"final, of a lost link": {of(&idem.FinalError{Err: of(idem.ErrInProgress)}), 422, 0},
		"key":                   {&idem.KeyError{}, 400, 0},
		"lost COMMIT": {
			&idem.Error{Stage: "commit", Unknown: true, Err: errors.New("lost")}, 503,
			5 * time.Second,
		},
		"serialization":          {server("40001"), 503, time.Second},
		"deadlock":               {server("40P01"), 503, time.Second},
		"server going away":      {server("57P01"), 503, 5 * time.Second},
		"no table":               {server("42P01"), 500, 0},
		"no right":               {server("42501"), 500, 0},
		"the context ended":      {of(context.DeadlineExceeded), 503, 5 * time.Second},
		"fn's own":               {errors.New("no such subscription"), 500, 0},
		"wrapped by the handler": {fmt.Errorf("handle: %w", of(idem.ErrInProgress)), 409, time.Second},
	} {
		require.Equal(t, tc.want, idem.HTTPStatus(tc.err), name)
		require.Equal(t, tc.after, idem.RetryAfter(tc.err), name)
	}
}

// A webhook answers with what the error says.
func ExampleHTTPStatus() {
	respond := func(w http.ResponseWriter, err error) {
		if after := idem.RetryAfter(err); after > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(after.Seconds())))
		}
		w.WriteHeader(idem.HTTPStatus(err))
	}
	for _, err := range []error{nil, &idem.Error{Stage: "claim", Err: idem.ErrInProgress}} {
		w := httptest.NewRecorder()
		respond(w, err)
		fmt.Printf("%d %q\n", w.Code, w.Header().Get("Retry-After"))
	}
	// Output:
	// 200 ""
	// 409 "1"
}
