package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
)

func TestRead(t *testing.T) {
	t.Parallel()
	const good = `{"provider":"github","id":"1","body":"{}"}`
	for _, c := range []struct{ name, line, want string }{
		{"cut", `{"provider":"github","id":"s3cret"`, "line 3: not JSON, from byte 34 on"},
		{"two objects", good + good, "line 3: not JSON, from byte 43 on"},
		{"array", `["s3cret"]`, "line 3: not a JSON object"},
		{
			"number for id", `{"provider":"github","id":73573573,"body":"s3cret"}`,
			"line 3: not a JSON object with the strings",
		},
		{"null", `null`, "line 3: there is no body"},
		{"no provider", `{"id":"s3cret","body":"{}"}`, "line 3: idem: the source is empty"},
		{"no id", `{"provider":"github","body":"s3cret"}`, "line 3: idem: the key has an empty part"},
		{"no body", `{"provider":"github","id":"s3cret"}`, "line 3: there is no body"},
		{"NUL", `{"provider":"github","id":"s3cret\u0000","body":"{}"}`, "line 3: idem: the key holds a NUL byte"},
		{
			"long id", `{"provider":"github","id":"` + strings.Repeat("s3cret", 200) + `","body":"{}"}`,
			"line 3: idem: the key is too long",
		},
		{
			"not UTF-8", "{\"provider\":\"github\",\"id\":\"s3cret\xff\",\"body\":\"{}\"}",
			"line 3: the provider, id or object is not UTF-8",
		},
		{
			"half a character", `{"provider":"github","id":"s3cret\ud800","body":"{}"}`,
			"line 3: the provider, id or object is not UTF-8",
		},
		{
			"long line", `{"provider":"github","id":"s3cret","body":"` + strings.Repeat("x", maxLine) + `"}`,
			"line 3: longer than 4194304 bytes",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var lines []int
			var last error
			for d, err := range read(strings.NewReader(good + "\n  \n" + c.line + "\n" + good)) {
				if last = err; err == nil {
					lines = append(lines, d.line)
				}
			}
			require.Equal(t, []int{1}, lines, "nothing after the error")
			require.ErrorContains(t, last, c.want)
			require.NotContains(t, last.Error(), "s3cret")
			require.NotContains(t, last.Error(), "73573573")
		})
	}
}

func TestReadLongestLine(t *testing.T) {
	t.Parallel()
	line := `{"provider":"github","id":"1","body":"` + strings.Repeat("x", maxLine-100) + `"}`
	n := 0
	for d, err := range read(strings.NewReader(line + "\r\n" + line)) { // without a line end at the end
		require.NoError(t, err)
		require.Len(t, d.Body, maxLine-100)
		n++
	}
	require.Equal(t, 2, n)
}

func TestReadFailure(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken disk")
	var last error
	for _, err := range read(io.MultiReader(bytes.NewBufferString("{"), brokenReader{broken})) {
		last = err
	}
	require.ErrorContains(t, last, "line 1: ")
}

type brokenReader struct{ err error }

func (r brokenReader) Read([]byte) (int, error) { return 0, r.err }

func TestOpenFile(t *testing.T) {
	t.Parallel()
	_, err := openFile(t.TempDir() + "/none")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = openFile(t.TempDir())
	require.ErrorContains(t, err, "not a regular file")
}

func TestPersist(t *testing.T) {
	t.Parallel()
	passing := &pgconn.PgError{Code: "40001"}
	final := errors.New("no use")
	for _, c := range []struct {
		name  string
		errs  []error
		calls int
		want  error
	}{
		{"at once", []error{nil}, 1, nil},
		{"later", []error{passing, passing, nil}, 3, nil},
		{"never", []error{passing, passing, passing, passing, nil}, 4, passing},
		{"no use", []error{passing, final, nil}, 2, final},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				_, err := persist(t.Context(), func() (int, error) { calls++; return calls, c.errs[calls-1] })
				require.Equal(t, c.calls, calls)
				require.Equal(t, c.want, err)
			})
		})
	}
}

func TestPersistStopsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		_, err := persist(ctx, func() (int, error) { return 0, &pgconn.PgError{Code: "40001"} })
		require.Error(t, err)
		require.Error(t, ctx.Err())
	})
}

// A database that stays away ends the run at the first delivery, instead of failing one after the other.
func TestFeedGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// nobody listens on port 1
		pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none?sslmode=disable")
		require.NoError(t, err)
		defer pool.Close()
		var counted tally
		r := strings.NewReader(shipped)
		err = feed(t.Context(), pool, r, &counted)
		require.ErrorContains(t, err, "given up after 4 tries")
		require.ErrorContains(t, err, "line ")
		require.Zero(t, counted.now().deliveries())
		require.NotZero(t, r.Len(), "it must not read on")
	})
}

func TestShow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var counted tally
		var b strings.Builder
		hide := counted.show(&b)
		time.Sleep(1500 * time.Millisecond)
		counted.handled(result{outcome: idem.Executed, stale: true})
		counted.handled(result{outcome: idem.Duplicate})
		counted.handled(result{outcome: idem.Duplicate})
		counted.failed(errors.New("no use"))
		time.Sleep(time.Second)
		hide()
		require.Equal(t, "0 deliveries, 0 effects, 0 duplicates, 0 failed\n4 deliveries, 1 effects, 2 duplicates, 1 failed\n", b.String())
		require.Equal(t, 1, counted.now().stale)
	})
}

func TestManyFailures(t *testing.T) {
	t.Parallel()
	var counted tally
	require.NoError(t, counted.now().failures())
	for i := range 1000 {
		counted.failed(fmt.Errorf("line %d: no use", i))
	}
	err := counted.now().failures()
	require.ErrorContains(t, err, "1000 deliveries failed")
	require.Equal(t, maxErrs, strings.Count(err.Error(), "no use"))
}

// lineReader gives a line to each Read, and calls before(n) ahead of line n.
type lineReader struct {
	rest   []string
	n      int
	before func(n int)
}

func newLineReader(text string, before func(n int)) *lineReader {
	return &lineReader{rest: strings.SplitAfter(text, "\n"), before: before}
}

func (r *lineReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 || r.rest[0] == "" {
		return 0, io.EOF
	}
	r.n++
	r.before(r.n)
	n := copy(p, r.rest[0])
	if r.rest[0] = r.rest[0][n:]; r.rest[0] == "" {
		r.rest = r.rest[1:]
	}
	return n, nil
}
