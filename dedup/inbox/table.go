package inbox

import (
	"context"
	"time"

	"github.com/pgonce/pgonce/dedup"
	engine "github.com/pgonce/pgonce/internal/inbox"
	"github.com/pgonce/pgonce/internal/pg"
)

// Table names an inbox. The zero value is the table inbox, found by the search path. Making a Table reads and writes
// nothing. Give a consumer that must be apart from others its own table.
type Table struct {
	// Name is the table's name, with or without its schema, of at most 54 bytes: "messages", "app.messages". Empty
	// means "inbox". It is quoted for you, and its case kept. Give the schema wherever the search path may change.
	Name string

	// Keep is how long a message's name is kept after it was handled or discarded; what comes later is new. 0 means
	// [dedup.DefaultRetention].
	Keep time.Duration

	// KeepBodies is how long body and headers are kept, and so how far back Replay reaches. 0 means 7 days, or Keep if
	// that is shorter.
	KeepBodies time.Duration

	// Observer, if not nil, is told what becomes of each stored message (dedup.Stored, dedup.Duplicate, dedup.Failed),
	// of each attempt (dedup.Executed, dedup.Failed, dedup.DeadLetter, dedup.Unknown), and of each purge.
	Observer dedup.Observer
}

// State is what has become of a message.
type State uint8

// The states.
const (
	Waiting   State = 1 // to be handled, or being handled, or behind another one of its key
	Handled   State = 2
	Dead      State = 3 // had its last attempt: it waits for somebody to replay or discard it
	Discarded State = 4
)

// String returns the state's name, in lower case.
func (s State) String() string {
	if s > Discarded {
		s = 0
	}
	return [...]string{"none", "waiting", "handled", "dead", "discarded"}[s]
}

// Validate reports whether t can be a table. It does not look at a database; [Verify] does.
func (t Table) Validate() error {
	_, err := engine.Table(t).SQL()
	return wrapped("table", err)
}

// DDL returns the SQL that makes the table, for a migration tool or psql. It can be run again. Its comments state the
// locks it takes. DDL panics where [Table.Validate] returns an error.
func (t Table) DDL() string {
	if err := t.Validate(); err != nil {
		panic("inbox: Table.DDL: " + err.Error())
	}
	name, _ := engine.ParseName(t.Name)
	return engine.Tables().DDL(name)
}

func names(tables []Table) []string {
	all := make([]string, len(tables))
	for i, t := range tables {
		all[i] = t.Name
	}
	return all
}

// Migrate makes the table, or brings it up to this library's version; with none given, the zero [Table]. It owns one
// READ COMMITTED transaction with an advisory lock, so several processes may call it at once. It ends with [Verify],
// and returns its *[dedup.VerifyError]; then, as on any other error, nothing is changed. A connection that is in a
// transaction is refused. Safe for concurrent use.
func Migrate(ctx context.Context, db dedup.DB, tables ...Table) error {
	return wrapped("migrate", engine.Tables().MigrateAll(ctx, pg.FromPgxDB(db, readCommitted()), names(tables)...))
}

// Verify proves from the catalog that each table can be an inbox; with none given, the zero [Table]. It returns nil
// when all of it holds, a *[dedup.VerifyError] with every problem where not, and any other error when it could not ask.
// It asks:
//
//   - is the table there, logged, with the columns, types and collations that the statements rely on;
//   - is a unique index on a message's name, valid, immediate, for all rows, and on nothing else; are other indexes
//     valid;
//   - do the numbers ascend without gaps that a session keeps to itself (CACHE 1);
//   - can a trigger, a rule or row security drop or hide messages; has the current role its rights;
//   - of the session, what dedup.Verify asks of it.
//
// The kinds: "table missing", "not our table", "not logged", "column missing", "column type", "constraint missing",
// "other unique index", "index missing", "numbers out of order", "trigger" (rules, too), "row security", "rights
// missing", "not PostgreSQL", and those of a session. On Citus it refuses a table that Citus knows ("spread"), and one
// beside tables in shards ("not spread"): dedup/CITUS.md says why. Safe for concurrent use.
func Verify(ctx context.Context, db Conn, tables ...Table) error {
	return wrapped("verify", engine.Tables().VerifyAll(ctx, pg.FromPgx(db), names(tables)...))
}

// Depth is what is not finished, for alarms.
type Depth struct {
	Waiting int64         // in all, with the next three
	Due     int64         // nobody has taken them yet
	Behind  int64         // behind another one of their key, as far as a worker has noticed
	Taken   int64         // by a worker, which may have died
	Dead    int64         // had their last attempt; not in Waiting
	Oldest  time.Duration // how long the oldest of Waiting has waited, by the server's clock; 0 where there is none
}

// Depth counts what is not finished. It reads all of that, and nothing finished: call it every minute, not for every
// message.
func (t Table) Depth(ctx context.Context, db Conn) (Depth, error) {
	s, err := engine.Table(t).SQL()
	if err != nil {
		return Depth{}, wrapped("depth", err)
	}
	d, err := s.Depth(ctx, pg.FromPgx(db))
	return Depth(d), wrapped("depth", err)
}

// Filter chooses messages that fit all of what is set. The zero Filter chooses everything dead.
type Filter struct {
	State             State // 0 means Dead
	Source, Operation string
	IDs               []string // nil means any; empty means none
	ErrorClass        string

	// ReceivedAfter and ReceivedBefore are the first time and the one behind the last.
	ReceivedAfter, ReceivedBefore time.Time
}

func (f Filter) engine() engine.Filter {
	return engine.Filter{
		State: engine.State(f.State), Source: f.Source, Operation: f.Operation, IDs: f.IDs, ErrorClass: f.ErrorClass,
		ReceivedAfter: f.ReceivedAfter, ReceivedBefore: f.ReceivedBefore,
	}
}

// List returns messages, the first stored first, at most limit. Of those whose body was purged, Body is nil.
func (t Table) List(ctx context.Context, db Conn, f Filter, limit int) ([]Message, error) {
	s, err := engine.Table(t).SQL()
	if err != nil {
		return nil, wrapped("list", err)
	}
	found, err := s.List(ctx, pg.FromPgx(db), f.engine(), limit)
	all := make([]Message, len(found))
	for i, m := range found {
		all[i] = message(m)
	}
	return all, wrapped("list", err)
}

// Replay makes messages due again, with all their attempts to come: dead ones, and by [Filter].State handled or
// discarded ones, whose handler then runs once more. A message goes before the later ones of its key. It returns how
// many. A message whose body was purged is left as it is, and not counted; dead ones keep theirs. A state of Waiting is
// [ErrInvalid].
func (t Table) Replay(ctx context.Context, db Conn, f Filter) (int64, error) {
	s, err := engine.Table(t).SQL()
	if err != nil {
		return 0, wrapped("replay", err)
	}
	n, err := s.Replay(ctx, connOf(db), aloneOf(db), f.engine())
	return n, wrapped("replay", err)
}

// Discard gives dead messages up: they are not handled, what comes again is still a [Duplicate], and the next message
// of each key is due at once. It returns how many. A state other than Dead is [ErrInvalid].
func (t Table) Discard(ctx context.Context, db dedup.DB, f Filter) (int64, error) {
	s, err := engine.Table(t).SQL()
	if err != nil {
		return 0, wrapped("discard", err)
	}
	n, err := s.Discard(ctx, pg.FromPgxDB(db, readCommitted()), f.engine())
	return n, wrapped("discard", err)
}

// Purged is what a purge has done.
type Purged struct {
	Bodies int64 // messages whose body and headers were deleted
	Keys   int64 // messages that were deleted altogether
}

// Purge deletes what Table's Keep and KeepBodies say, of messages that are handled or discarded, counted from then on.
// What waits and what is dead stays. Each batch of 1,000 is committed by itself; locked rows wait for the next purge.
// Several may run at once. Call it every hour, or every day. It also makes due what waits behind a message that was
// deleted by hand.
func (t Table) Purge(ctx context.Context, db dedup.DB) (Purged, error) {
	p, err := engine.Table(t).Purge(ctx, pg.WriterPgxAlone(db))
	return Purged(p), wrapped("purge", err)
}
