// Command sqlcservice reads deliveries of a queue, a JSON object a line, and hands them to workers, which make each
// transfer once through the queries of sqlc, however often its message comes.
//
//	go run ./examples/sqlcservice
//	go run ./examples/sqlcservice -dsn 'postgres://me@localhost/mine?search_path=demo' < deliveries.jsonl
//
// Without standard input from a file or a pipe it takes a few deliveries that come with it. What to copy is worker.go.
package main

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pgonce/pgonce/idem/idemsql"
)

//go:embed schema.sql
var schema string

const shipped = `{"id": "msg_1", "from": "alice", "to": "bob", "amount": 30}
{"id": "msg_1", "from": "alice", "to": "bob", "amount": 30}
{"id": "msg_2", "from": "alice", "to": "bob", "amount": 50}
{"id": "msg_3", "from": "alice", "to": "bob", "amount": 500}
{"id": "msg_2", "from": "alice", "to": "bob", "amount": 50}
`

// local has a method start, which starts a database for this run, where local.go has not been left behind.
type local struct{}

func main() {
	dsn := flag.String("dsn", "", "the `database`; without it a private PostgreSQL is started and removed afterwards")
	flag.Parse()
	var in io.Reader = os.Stdin
	if s, err := os.Stdin.Stat(); err != nil || s.Mode()&os.ModeCharDevice != 0 {
		in = strings.NewReader(shipped)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := run(ctx, *dsn, in, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sqlcservice:", err)
		os.Exit(1)
	}
}

// run handles the deliveries of in, says what became of each, and then what each account holds.
func run(ctx context.Context, dsn string, in io.Reader, out io.Writer) (err error) {
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
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	w, err := newWorker(ctx, db)
	if err != nil {
		return err
	}
	if err := w.work(ctx, in, out); err != nil {
		return err
	}
	for _, id := range []string{"alice", "bob"} {
		balance, err := New(db).Balance(ctx, id)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, id, "has", balance)
	}
	return nil
}

// newWorker makes the tables and the worker.
func newWorker(ctx context.Context, db *sql.DB) (worker, error) {
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return worker{}, err
	}
	for _, id := range []string{"alice", "bob"} {
		if err := New(db).OpenAccount(ctx, OpenAccountParams{ID: id, Balance: 100}); err != nil {
			return worker{}, err
		}
	}
	return worker{db, idemsql.Once{MaxWait: 2 * time.Second}}, idemsql.Migrate(ctx, db)
}
