// Command quickstart feeds a file of webhook deliveries to eight workers at once: each event comes one to four times,
// late ones after newer ones. Every event has its effect once, and each subscription ends in its newest state. The
// program then compares the database with the file, and says so.
//
//	go run ./examples/quickstart
//	go run ./examples/quickstart -deliveries my.jsonl -dsn 'postgres://me@localhost/mine?search_path=demo'
//
// Ctrl-C stops it between two deliveries, and the next run on the same database goes on from there.
//
// What to copy is handle.go: a handler with its key, its effect, and an upsert that survives any order. The exit code
// is 0 where the proof holds, 1 where it does not or something failed, 130 after Ctrl-C.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
)

//go:embed schema.sql
var schema string

//go:embed deliveries.jsonl
var shipped string

// startLocal starts a database for this run. It is set by local.go, and nil where that file was left behind.
var startLocal func(context.Context) (dsn string, stop func() error, err error)

func main() {
	dsn := flag.String("dsn", "", "connection `string` of the database, and with search_path=... of the schema, for the "+
		"tables;\n"+
		"a second run there goes on where the first one stopped; without it a private PostgreSQL is\n"+
		"started, and removed at the end")
	file := flag.String("deliveries", "",
		"`file` of deliveries, JSON lines; without it the one that comes with the program")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(shipped)), nil }
	if *file != "" {
		open = func() (io.ReadCloser, error) { return openFile(*file) }
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C is not held up by anything
	err := run(ctx, *dsn, open, os.Stdout, os.Stderr)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "quickstart: interrupted:", err)
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// run feeds the deliveries of a file to the database and prints what became of them. A nil error means that the proof
// holds.
func run(ctx context.Context, dsn string, open func() (io.ReadCloser, error), out, progress io.Writer) (err error) {
	in, err := open()
	if err != nil {
		return err
	}
	defer in.Close()
	if dsn == "" {
		if startLocal == nil {
			return errors.New("-dsn is missing: which database?")
		}
		fmt.Fprintln(progress, "starting a private PostgreSQL (where there is none on this machine, it is downloaded once)")
		var stop func() error
		if dsn, stop, err = startLocal(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	pool, err := connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := dedup.Migrate(ctx, pool); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return fmt.Errorf("make the tables of the example: %w", err)
	}

	fmt.Fprintln(progress, "feeding deliveries to", workers, "workers")
	var t tally
	hide := t.show(progress)
	start := time.Now()
	err = feed(ctx, pool, in, &t)
	took := time.Since(start)
	hide()
	c := t.now()
	if err != nil {
		return errors.Join(fmt.Errorf("%w\nbefore that: %s", err, c), c.failures())
	}

	p, err := persist(ctx, func() (proof, error) {
		again, err := open()
		if err != nil {
			return proof{}, err
		}
		defer again.Close()
		return prove(ctx, pool, again)
	})
	if err != nil {
		return err
	}
	return report(out, c, p, took)
}

func connect(ctx context.Context, dsn string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = max(cfg.MaxConns, workers) // a delivery holds a connection for as long as its transaction lasts
	return pgxpool.NewWithConfig(ctx, cfg)
}
