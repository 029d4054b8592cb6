package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// The short form: everything runs, the page is complete, and what is counted is right. What is timed is not judged.
func TestBench(t *testing.T) {
	t.Parallel()
	var out, progress bytes.Buffer
	cfg := config{
		dsn: pgtest.DSN(t), out: filepath.Join(t.TempDir(), "bench"), parts: strings.Split(allParts, ","),
		each: 50 * time.Millisecond, least: 1, messages: 40, turns: 1, ids: 20, rounds: 2,
		rows: []int{1000}, turn: 50 * time.Millisecond, warm: 10 * time.Millisecond, loadWorks: []int{1, 8},
	}
	require.NoError(t, run(t.Context(), cfg, &out, &progress), "%s", &progress)
	text, err := os.ReadFile(cfg.out + ".md")
	require.NoError(t, err)
	require.Equal(t, out.String(), string(text))
	t.Logf("%s", text)
	require.NoFileExists(t, "bench.md")
	for _, r := range rivals() {
		require.GreaterOrEqual(t, strings.Count(out.String(), "| "+r.name+" |"), 4,
			"%s: first delivery, duplicate, and two counts", r.name)
	}
	for _, want := range []string{
		"PostgreSQL: server_version", "| | 1 worker | 8 workers | 1 worker, link of 1 ms |",
		"### Batches", "### Upsert of one row, stale",
		"### Upsert of 1,000 rows, new\n", "| control | ± ",
		"| River |", "| DBOS |", "| `Run`, MaxWait 1 ms |", "| Weekly | UUIDv7 | 1000 |",
		"| Hash(8) | random |",
	} {
		require.Contains(t, out.String(), want)
	}
	require.NotContains(t, out.String(), "NaN")
	require.NotContains(t, out.String(), "%!")

	drawing, err := os.Open(cfg.out + ".svg")
	require.NoError(t, err)
	defer drawing.Close()
	bars := 0
	for tokens := xml.NewDecoder(drawing); ; {
		token, err := tokens.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "title" {
			bars++
		}
	}
	require.Equal(t, 3*(2*len(rivals())+4+6*2), bars)
}

// The counts tell a way that is right from one that is not: without that they would be worth nothing.
func TestCounts(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dsn, stop, err := local{}.start(ctx, true) // nobody else writes there: the log is measured
	require.NoError(t, err)
	defer func() { require.NoError(t, stop()) }()
	b, err := open(ctx, config{dsn: dsn, messages: 60}, io.Discard)
	require.NoError(t, err)
	defer func() { require.NoError(t, b.close()) }()
	var p page
	require.NoError(t, b.counts(ctx, &p))
	require.Len(t, p.counts, 2*len(rivals()))
	for _, c := range p.counts {
		t.Logf("%+v", c)
		crashes := c.messages / crashEvery
		if c.rival == "`Once.Apply`" {
			crashes = 0 // nothing of ours runs between its claim and its effect
		}
		require.Equal(t, crashes, c.crashes, c.rival)
		switch c.rival {
		case "select, then insert":
			require.Positive(t, c.doubled, c.rival)
		case "claim committed first":
			require.Equal(t, c.crashes, c.lost, c.rival)
			require.Positive(t, c.wrong, c.rival)
		case "advisory lock": // the snapshot of REPEATABLE READ is taken before the wait
			require.Equal(t, c.isolation == "repeatable read", c.doubled > 0, "%s", c.isolation)
		default:
			require.Zero(t, c.lost+c.doubled+c.wrong, "%s, %s", c.rival, c.isolation)
		}
		if strings.Contains(c.rival, "idem.") || strings.Contains(c.rival, "Once.") {
			require.Zero(t, c.wal, "a duplicate writes nothing")
		}
	}
}

// A link of a millisecond takes a millisecond.
func TestLink(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b, err := open(ctx, config{dsn: pgtest.DSN(t)}, io.Discard)
	require.NoError(t, err)
	defer func() { require.NoError(t, b.close()) }()
	trip, err := medianTrip(ctx, b.far)
	require.NoError(t, err)
	t.Logf("%v", trip)
	require.GreaterOrEqual(t, trip, linkTrip)
}
