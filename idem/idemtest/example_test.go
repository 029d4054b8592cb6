package idemtest_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// printer stands for the *testing.T of your test. It prints what the handler is told, without what is new in every run.
type printer struct{}

func (printer) Helper()             {}
func (printer) Name() string        { return "TestWelcome" }
func (printer) Logf(string, ...any) {}
func (printer) Cleanup(func())      {}

func (printer) Fatalf(format string, args ...any) {
	what, _, _ := strings.Cut(fmt.Sprintf(format, args...), "\n\tseed")
	fmt.Println(strings.ReplaceAll(strings.ReplaceAll(what, ": ", ":\n"), "\t", ""))
	runtime.Goexit()
}

func ExampleKit() {
	dsn, drop, err := pgtest.ExampleDSN() // a database to copy; yours may come from an environment variable
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer drop()
	type Signup struct{ ID, Name string }
	kit := idemtest.Kit[Signup]{
		DSN: dsn,
		Setup: func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := pool.Exec(ctx, `CREATE TABLE letters (id bigint GENERATED ALWAYS AS IDENTITY, name text, at timestamptz DEFAULT now())`)
			return err
		},
		Handler: func(db *idemtest.DB) func(context.Context, Signup) error {
			pool := db.Pool()
			return func(ctx context.Context, s Signup) error {
				_, err := pool.Exec(ctx, `INSERT INTO letters (name) VALUES ($1)`, s.Name)
				return err
			}
		},
		Deliveries: []Signup{{"evt_1", "Ada"}},
	}
	done := make(chan struct{})
	go func() { // in a test: kit.All(t)
		defer close(done)
		kit.DoubleSubmit(printer{})
	}()
	<-done
	// Output:
	// idemtest:
	// DoubleSubmit:
	// delivery 1 of 1, {ID:evt_1 Name:Ada}, made a second time, after it had been acknowledged:
	// 1 row of letters too many:
	// no key:
	// nothing recognises the second delivery; claim a key that comes from the delivery alone, in the transaction of the effect
	// + letters {"name":"Ada"}
}
