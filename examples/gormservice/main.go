// Command gormservice reads deliveries of a queue, a JSON object a line, and places each order once through GORM,
// however often its message comes.
//
//	go run ./examples/gormservice
//	go run ./examples/gormservice -dsn 'postgres://me@localhost/mine?search_path=demo' < deliveries.jsonl
//
// Without standard input from a file or a pipe it takes a few deliveries that come with it. What to copy is
// consumer.go.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
)

const shipped = `{"id": "msg_1", "item": "lamp"}
{"id": "msg_2", "item": "lamp"}
{"id": "msg_1", "item": "lamp"}
{"id": "msg_3", "item": "sofa"}
{"id": "msg_2", "item": "lamp"}
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
		fmt.Fprintln(os.Stderr, "gormservice:", err)
		os.Exit(1)
	}
}

// run handles the deliveries of in, and says what became of each.
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
	db, err := gorm.Open(postgres.Open(dsn), &gorm.Config{})
	if err != nil {
		return err
	}
	pool, err := db.DB()
	if err != nil {
		return err
	}
	defer pool.Close()
	c, err := newConsumer(ctx, db)
	if err != nil {
		return err
	}
	for dec := json.NewDecoder(in); ; {
		var m message
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		outcome, err := c.handle(ctx, m)
		switch {
		case err == nil:
			fmt.Fprintln(out, m.ID, outcome, "- acknowledge")
		case idem.Retryable(err):
			fmt.Fprintln(out, m.ID, err, "- deliver it again")
		default:
			fmt.Fprintln(out, m.ID, err, "- to the dead letters")
		}
	}
}

// newConsumer makes the tables and the consumer.
func newConsumer(ctx context.Context, db *gorm.DB) (*consumer, error) {
	if err := db.WithContext(ctx).AutoMigrate(&Order{}, &Stock{}); err != nil {
		return nil, err
	}
	stock := []Stock{{"lamp", 100}, {"sofa", 0}}
	if err := db.WithContext(ctx).Clauses(clause.OnConflict{DoNothing: true}).Create(&stock).Error; err != nil {
		return nil, err
	}
	pool, err := db.DB()
	if err != nil {
		return nil, err
	}
	return &consumer{db, idemsql.Once{MaxWait: 2 * time.Second}}, idemsql.Migrate(ctx, pool)
}
