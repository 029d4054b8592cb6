package idemhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemhttp"
)

// A response that contradicts itself is not one to commit: a success, and then an error; fewer or more bytes than its
// length. What began as an error goes out as it is.
func TestContradictions(t *testing.T) {
	for name, c := range map[string]struct {
		write         func(w http.ResponseWriter)
		status        int
		effects, keys int
	}{
		"an error after a body": {func(w http.ResponseWriter) {
			fmt.Fprint(w, `{"id":`)
			http.Error(w, "broken", 500)
		}, 500, 0, 0},
		"an error after a status": {func(w http.ResponseWriter) { w.WriteHeader(201); w.WriteHeader(404) }, 500, 0, 0},
		"two successes":           {func(w http.ResponseWriter) { w.WriteHeader(201); w.WriteHeader(200) }, 201, 1, 1},
		"an error twice":          {func(w http.ResponseWriter) { w.WriteHeader(422); w.WriteHeader(400) }, 422, 0, 1},
		"a success after an error": {func(w http.ResponseWriter) {
			w.WriteHeader(404)
			w.WriteHeader(201)
		}, 404, 0, 1},
		"shorter than it says": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "5")
			fmt.Fprint(w, "four")
		}, 500, 0, 0},
		"longer than it says": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "3")
			fmt.Fprint(w, "four")
		}, 500, 0, 0},
		"nothing of it": {func(w http.ResponseWriter) { w.Header().Set("Content-Length", "5") }, 500, 0, 0},
		"an error, shorter than it says": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "5")
			w.WriteHeader(422)
		}, 422, 0, 0},
		"as long as it says": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "4")
			fmt.Fprint(w, "four")
		}, 200, 1, 1},
		"of what is not modified": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "4")
			w.WriteHeader(304)
		}, 304, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, doors[0])
			told := 0
			c2 := config()
			c2.OnError = func(*http.Request, error) { told++ }
			srv := b.serve(b.wrap(nil, settings{}, c2, func(w http.ResponseWriter, r *http.Request) {
				require.NoError(t, effect(r))
				c.write(w)
			}))
			got := b.post(srv, "k", "b")
			require.Equal(t, c.status, got.status)
			if c.status == 500 {
				b.wantProblem(got, 500, "failed")
				require.Equal(t, 1, told)
			}
			b.wants(1, c.effects, c.keys)
			require.Equal(t, c.keys == 1, b.post(srv, "k", "b").replayed())
		})
	}
}

// An error of idem's about a key of the handler's own says nothing of the request's: it spoils no retry.
func TestErrorsOfHandler(t *testing.T) {
	everyDoor(t, func(b *bench) {
		for _, c := range []struct {
			err    error
			status int
			name   string
		}{
			{idem.ErrPayloadMismatch, 500, "failed"},
			{idem.ErrExpired, 500, "failed"},
			{&idem.KeyError{Role: "key", Problem: "is empty"}, 500, "failed"},
			{idem.ErrInProgress, 503, "unavailable"},
		} {
			fail := b.standard(func(w http.ResponseWriter, r *http.Request) {
				idemhttp.Fail(r.Context(), c.err)
				fmt.Fprint(w, "fine")
			})
			b.wantProblem(b.post(fail, "fail", "b"), c.status, c.name)
			config := config()
			config.Lease, config.Remembers = time.Minute, time.Hour
			then := b.serve(b.wrap(nil, settings{}, config, func(w http.ResponseWriter, r *http.Request) {
				idemhttp.Then(r.Context(), func(context.Context) error { return c.err })
				fmt.Fprint(w, "fine")
			}))
			b.wantProblem(b.post(then, "then", "b"), c.status, c.name)
		}
	})
}
