package idemtest

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

// TB is what the kit needs of a test: a *testing.T fits. Fatalf must not return. It is called on the goroutine that
// called the kit.
type TB interface {
	Helper()
	Name() string
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// Kit describes a handler to the kit. DSN, Handler and Deliveries are needed; every other field may be zero. D is the
// type of a delivery.
//
// A Kit is a plain value. Its methods change nothing in it, and fail the test with one message or return. Call them in
// any order, in parallel tests too, unless there is a Probe.
type Kit[D any] struct {
	// DSN is the connection string of a test database, in any form that pgx takes. The kit does not write to it, and
	// works in copies (CREATE DATABASE ... TEMPLATE): the role must be allowed to create databases, and nobody else may
	// be connected while it copies. Copies are named idemtest_..., and dropped at the end. After a failure one stays,
	// and the message has its name. It is dropped when the same test runs again, or any test a day later, as is what a
	// killed run left. Copies in use are never dropped.
	DSN string

	// Setup makes the tables and rows that the handler expects and the database lacks. It is called once for each call
	// of the kit, on the copy.
	Setup func(ctx context.Context, pool *pgxpool.Pool) error

	// Handler makes the handler under test, only on the connections of db, where the kit cuts. It is called anew for
	// every round, as at a program's start, from several goroutines. The handler is called with each delivery: nil
	// acknowledges; anything else, a panic too, means that the delivery must come again. For a web server see [HTTP].
	//
	// The handler may keep a connection that it takes while it is made, to listen. Other work in the background (a
	// relay) does not belong here: what is committed after a delivery's nil counts against it.
	Handler func(db *DB) func(ctx context.Context, d D) error

	// Deliveries are events of different ids, one delivery of each, in the order in which they happened. They are
	// delivered many times, in many orders, from several goroutines: the handler must not change them. Leave out what
	// the handler cannot do on a first delivery (an error on purpose).
	Deliveries []D

	// Keys are the functions that make the handler's keys, one for each of its operations. [Kit.Collide] needs them.
	Keys []func(D) idem.Key

	// Event makes the n-th of many different events, for [Kit.Load].
	Event func(n int) D

	// Dedup are the tables of package dedup that back the handler's keys; of them only source, operation and key are
	// compared. None given: processed_events, if it exists.
	Dedup []dedup.Table

	// Constraints name the unique constraints (or indexes) that back the keys of a handler with a table of its own.
	// [Kit.Backed] looks at them.
	Constraints []string

	// Tables are the tables to compare, with or without schema. None given: all of the database, except extensions'.
	// Of an inbox and an outbox what a delivery decides is compared: no ids of events, attempts and times.
	Tables []string

	// Ignore lists further columns, as "table.column", that may differ from run to run. The kit finds and logs by
	// itself identity and generated columns, and those whose default is not immutable (now(), gen_random_uuid(),
	// nextval). It also finds columns that differ between two undisturbed runs, the second with sequences that have
	// moved on: a reference to an id, a time that the handler sets. Rows are counted and compared without them.
	Ignore []string

	// Probe returns the effects elsewhere, a line for each: the mails in a fake mailbox, the charges of a fake
	// provider. They are compared like rows, and must only grow. It must see what all handlers of this process did.
	// With a Probe rounds run one at a time; rounds that kill a process are compared without it.
	Probe func(ctx context.Context) ([]string, error)

	// Configure, if not nil, changes the pool's configuration before use: exec mode, hooks, a tracer.
	Configure func(cfg *pgxpool.Config)

	// Workers is how many deliveries are made at once. 0 means 8.
	Workers int

	// Timeout bounds one call of the handler. 0 means 10 seconds. A delivery that must come again gets three times as
	// long in all.
	Timeout time.Duration

	// Duration is how long [Kit.Load] lasts. 0 means 2 seconds.
	Duration time.Duration

	// Seed chooses random orders and faults. 0 means a new one each time. The environment variable IDEMTEST_SEED, part
	// of the command that replays a failure, goes first.
	Seed uint64
}

// All makes Collide if there are Keys, then DoubleSubmit, Crash, Reorder, Concurrent and Backed, until one fails. They
// share their databases, which is faster than one by one.
//
// A call of the kit ends after 10 minutes. Give a slow handler few deliveries: Crash runs it some ten times for each of
// its statements, and Reorder runs n deliveries in n! orders.
func (k Kit[D]) All(t TB) {
	t.Helper()
	var parts []part[D]
	if len(k.Keys) > 0 { // two events with one key look like many other faults
		parts = append(parts, part[D]{"Collide", (*lab[D]).collide})
	}
	run(t, k, append(parts,
		part[D]{"DoubleSubmit", (*lab[D]).doubleSubmit},
		part[D]{"Crash", (*lab[D]).crash},
		part[D]{"Reorder", (*lab[D]).reorder},
		part[D]{"Concurrent", (*lab[D]).concurrent},
		part[D]{"Backed", (*lab[D]).backed},
	)...)
}

const (
	defaultWorkers  = 8
	defaultTimeout  = 10 * time.Second
	defaultDuration = 2 * time.Second

	// The kit's own time limits: what is beyond them hangs.
	setupTimeout = 2 * time.Minute
	callTimeout  = 10 * time.Minute
)

// Environment variables that are part of a command that replays a failure.
const (
	seedEnv  = "IDEMTEST_SEED"
	roundEnv = "IDEMTEST_ROUND"
)

// withDefaults returns k with every zero field that has a default filled in.
func (k Kit[D]) withDefaults() Kit[D] {
	if k.Workers == 0 {
		k.Workers = defaultWorkers
	}
	if k.Timeout == 0 {
		k.Timeout = defaultTimeout
	}
	if k.Duration == 0 {
		k.Duration = defaultDuration
	}
	if s, err := strconv.ParseUint(os.Getenv(seedEnv), 10, 64); err == nil {
		k.Seed = s
	}
	if k.Seed == 0 {
		k.Seed = rand.Uint64N(1_000_000) + 1
	}
	return k
}

// problem says what is missing in k, or "".
func (k Kit[D]) problem() string {
	switch {
	case k.DSN == "" && !Child():
		return "Kit.DSN is empty: which database?"
	case k.Handler == nil:
		return "Kit.Handler is nil: what is to be tested?"
	case len(k.Deliveries) == 0:
		return "Kit.Deliveries is empty: give at least one event"
	case k.Workers < 0 || k.Timeout < 0 || k.Duration < 0:
		return "Kit.Workers, Timeout and Duration must not be negative"
	}
	return ""
}
