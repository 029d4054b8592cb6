// Package conformance is the suite that every front door of the library must pass, in every mode of its driver: idem
// and idemsql call it with a Door each. A behaviour that is tested at one door only is a defect.
package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

// Door opens databases through one front door and one mode of its driver.
type Door struct {
	// Open returns an empty database of its own, which lasts until t ends. The suite makes its tables there.
	Open func(t *testing.T) DB

	Features Features

	// Layout is that of the tables.
	Layout dedup.Layout

	// Core leaves out the groups that are slow, and differ least from mode to mode. The typical modes of each door run
	// them. For what is no full run, see pgtest.Full.
	Core bool

	// Spread is SQL that spreads the tables over the nodes of a cluster, after they have been made.
	Spread string

	// OneTable: the door sees no table but those of Spread, so that what a test makes by itself is not there.
	OneTable bool

	shelf *shelf
}

// Features are what doors may differ in, besides their types.
type Features struct {
	// FnCannotEnd: the transaction that fn gets has no Commit and no Rollback, so that there is nothing to refuse.
	FnCannotEnd bool

	// BusyUnnamed: what the driver says while rows are open is an error without a name, which may mean anything.
	BusyUnnamed bool

	// BusySticks: pgx/stdlib may keep a connection busy where a statement was tried while rows were open, whoever sent it.
	BusySticks bool
	// AsksServer: after fn, the door asks the server whether the transaction is still the one of the claim.
	AsksServer bool
	// Describes: the driver asks the server about each statement anew, before it sends the first of them.
	Describes bool
	// EndUnknown: the driver does not tell of a transaction that was ended in SQL text.
	EndUnknown bool
	// NoApply: the driver sends one statement after the other.
	NoApply bool
	// OneConn: Apply is called on a connection, not on a pool.
	OneConn bool
}

// Schema is what the suite needs besides the dedup table. The table effects has no unique constraint: an effect that
// happens twice stays visible. The table business has one of its own.
const Schema = `
CREATE TABLE effects (what text NOT NULL);
CREATE TABLE business (id text CONSTRAINT business_id_key UNIQUE);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`

// Settings are those of Once that every door has.
type Settings struct {
	Table    dedup.Table
	MaxWait  time.Duration
	Tries    int
	Observer dedup.Observer
	Level    string // isolation level of Run: "", "read committed", "repeatable read", "serializable"
}

// Receipt is the value that a provider, or fn of a Returning, gives. An infinite Amount cannot be encoded.
type Receipt struct {
	ID     string
	Amount float64
}

// Call is what every door's Call has.
type Call struct {
	Settings
	Lease, Remembers time.Duration
	Send             func(ctx context.Context, external string) (Receipt, error)
	Apply            func(ctx context.Context, tx Tx, v Receipt) error
}

// Reservation is a door's.
type Reservation struct {
	Attempt int
	Value   []byte
	Held    any // the door's own
}

// Move is a method of a door's Reservation: "fail", "extend", "release" or "void".
type Move struct {
	Name  string
	Value []byte
	Lease time.Duration
}

// Holder are those moves, as a door's Reservation has them: Q is what they take for a connection.
type Holder[Q any] interface {
	Fail(ctx context.Context, db Q, value []byte) error
	Extend(ctx context.Context, db Q, lease time.Duration) error
	Release(ctx context.Context, db Q) error
	Void(ctx context.Context, db Q) error
}

// MoveOver makes a move over a connection.
func MoveOver[Q any](ctx context.Context, db Q, held Holder[Q], m Move) error {
	switch m.Name {
	case "fail":
		return held.Fail(ctx, db, m.Value)
	case "extend":
		return held.Extend(ctx, db, m.Lease)
	case "release":
		return held.Release(ctx, db)
	case "void":
		return held.Void(ctx, db)
	}
	panic(m.Name)
}

// Querier is a database or a transaction.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) error
	Int(ctx context.Context, sql string, args ...any) (int64, error)
	Move(ctx context.Context, r Reservation, m Move) error
}

// DB is a database, through a pool.
type DB interface {
	Querier
	Begin(ctx context.Context, level string) (Tx, error)
	Run(ctx context.Context, s Settings, key idem.Key, fn func(context.Context, Tx) error) (idem.Outcome, error)
	Apply(ctx context.Context, s Settings, key idem.Key, effects ...Effect) (idem.Outcome, error)
	Lookup(ctx context.Context, s Settings, key idem.Key) (idem.Record, error)
	RunReturning(ctx context.Context, s Settings, key idem.Key, fn func(context.Context, Tx) (Receipt, error)) (Receipt,
		idem.Outcome, error)
	Reserve(ctx context.Context, s Settings, key idem.Key, lease time.Duration) (Reservation, idem.Outcome, error)
	Pending(ctx context.Context, s Settings, scope idem.Scope, limit int) ([]idem.PendingKey, error)
	Call(ctx context.Context, c Call, key idem.Key) (Receipt, idem.Outcome, error)
	Migrate(ctx context.Context, all ...dedup.Table) error
	Maintain(ctx context.Context, c dedup.Cleaner) (dedup.Stats, error)

	// Renew closes the sessions that are idle, so that the next ones are new.
	Renew()

	// Idle waits until no connection is taken and no transaction is open in the database, and reports whether that came.
	Idle(ctx context.Context) bool
}

// Tx is a transaction: one begun by DB.Begin, or the one that fn gets.
type Tx interface {
	Querier
	Do(ctx context.Context, s Settings, key idem.Key, fn func(context.Context, Tx) error) (idem.Outcome, error)
	DoMany(ctx context.Context, s Settings, keys []idem.Key,
		fn func(ctx context.Context, tx Tx, fresh []int) error) ([]idem.Result, error)
	DoReturning(ctx context.Context, s Settings, key idem.Key, fn func(context.Context, Tx) (Receipt, error)) (Receipt,
		idem.Outcome, error)
	Confirm(ctx context.Context, r Reservation, value []byte) error
	Forget(ctx context.Context, s Settings, key idem.Key) error
	Lookup(ctx context.Context, s Settings, key idem.Key) (idem.Record, error)
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error

	// Leave opens rows, and returns what closes them.
	Leave(ctx context.Context) (closes func(), err error)

	// Nested runs fn in a savepoint of the caller's own, released when fn returns nil and rolled back otherwise.
	Nested(ctx context.Context, fn func(Tx) error) error
}

// Run runs the suite.
func Run(t *testing.T, door Door) {
	door.shelf = &shelf{
		t: t, ddl: door.ddl(""), spread: door.Spread,
		open: func(t *testing.T) DB { return laidOut{door.Open(t), door} },
	}
	for _, group := range []struct {
		name string
		run  func(*testing.T, Door)
		core bool
	}{
		{"Outcomes", outcomes, true},
		{"Failing", failing, true},
		{"Misbehaving", misbehaving, true},
		{"Witness", witness, false},
		{"Nesting", nesting, false},
		{"Ended", ended, true},
		{"Concurrent", concurrent, false},
		{"Waiting", waiting, false},
		{"Slow", slow, true},
		{"Keys", keys, true},
		{"Setup", setup, true},
		{"Running", running, false},
		{"Losing", losing, true},
		{"Ending", ending, true},
		{"Unsent", unsent, false},
		{"Observing", observing, true},
		{"Returning", returning, true},
		{"Reserving", reserving, true},
		{"Calling", calling, true},
		{"Many", many, true},
		{"Applying", applying, true},
		{"Tables", tables, false},
	} {
		if door.Core && !group.core || door.Features.NoApply && group.name == "Applying" {
			continue
		}
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			group.run(t, door)
		})
	}
}

// Levels are the isolation levels.
var levels = []string{"read committed", "repeatable read", "serializable"}

var scope = idem.Scope{Source: "stripe", Operation: "activate"}
