// Command migrations makes the dedup table with a migration tool, as a service does whose tables all come from one. It
// uses goose; the files for tern and golang-migrate stand beside those for goose.
//
//	go run ./examples/migrations
//	go run ./examples/migrations -dsn 'postgres://me@localhost/mine'
//
// Copy the folder of your tool. README.md says what to do with it.
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

//go:embed goose
var files embed.FS

// local has a method start, which starts a database for this run, where local.go has not been left behind.
type local struct{}

func main() {
	dsn := flag.String("dsn", "", "the `database`; without it a private PostgreSQL is started and removed afterwards")
	flag.Parse()
	if err := run(context.Background(), *dsn, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "migrations:", err)
		os.Exit(1)
	}
}

// run migrates, proves the table, and delivers one message twice.
func run(ctx context.Context, dsn string, out io.Writer) (err error) {
	if dsn == "" {
		private, ok := any(local{}).(interface {
			start(ctx context.Context) (dsn string, stop func() error, err error)
		})
		if !ok {
			return errors.New("-dsn is missing: which database?")
		}
		var stop func() error
		if dsn, stop, err = private.start(ctx); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrate(ctx, pool); err != nil {
		return err
	}
	// The files say what the table should be. Verify says what it is.
	if err := dedup.Verify(ctx, pool); err != nil {
		return err
	}
	greetings := idem.Scope{Source: "example", Operation: "greet"}
	for range 2 {
		outcome, err := idem.Run(ctx, pool, greetings.Key("1"), func(context.Context, pgx.Tx) error { return nil })
		if err != nil {
			return err
		}
		fmt.Fprintln(out, outcome)
	}
	return nil
}

// migrate brings the database up to the newest file.
func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	dir, err := fs.Sub(files, "goose")
	if err != nil {
		return err
	}
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, dir)
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return err
}
