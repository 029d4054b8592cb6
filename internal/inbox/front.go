package inbox

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/pgerr"
)

// Table is what the front doors call a table. Its fields are those of package inbox.
type Table struct {
	Name             string
	Keep, KeepBodies time.Duration
	Observer         dedup.Observer
}

// DefaultKeepBodies is how long a body is kept where a Table does not say.
const DefaultKeepBodies = 7 * 24 * time.Hour

// SQL returns the statements on the table, or what is wrong with it.
func (t Table) SQL() (SQL, error) {
	name, err := ParseName(t.Name)
	if err != nil {
		return SQL{}, err
	}
	bodies, keys := t.ages()
	switch {
	case t.Keep < 0 || t.KeepBodies < 0:
		return SQL{}, errors.New("a time of the table's is negative")
	case bodies > keys:
		return SQL{}, errors.New("the table's KeepBodies is longer than its Keep")
	}
	return For(name), nil
}

func (t Table) ages() (bodies, keys time.Duration) {
	keys = cmp.Or(t.Keep, dedup.DefaultRetention)
	return cmp.Or(t.KeepBodies, min(DefaultKeepBodies, keys)), keys
}

// Store stores m, and tells the observer. For alone see [anew].
func (t Table) Store(ctx context.Context, conn, alone pg.Conn, m Message) (fresh bool, err error) {
	s, err := t.SQL()
	if err != nil {
		return false, err
	}
	begun := time.Now()
	var age time.Duration
	err = anew(conn, alone, func(conn pg.Conn) (err error) {
		fresh, age, err = s.Store(ctx, conn, m)
		return err
	})
	e := dedup.Event{Source: m.Source, Operation: m.Operation, Waited: time.Since(begun), Age: age}
	switch {
	case errors.Is(err, ErrInvalid):
		return false, err // as idem: of what was not sent nobody is told
	case err != nil:
		e.Outcome, e.Code = dedup.Failed, pgerr.Code(err)
	case fresh:
		e.Outcome = dedup.Stored
	default:
		e.Outcome = dedup.Duplicate
	}
	t.tell(ctx, e)
	return fresh, err
}

// anew calls f with conn, and once more with alone, where that is not nil and the session's defaults were in the way:
// it is read only, or of an isolation level at which rivals are errors. Neither time anything was written. Why not
// alone from the first: it costs two statements more.
func anew(conn, alone pg.Conn, f func(conn pg.Conn) error) error {
	err := f(conn)
	if alone == nil || !pgerr.Is(err, "25006") && !pgerr.Is(err, "40001") {
		return err
	}
	again := f(alone)
	if pgerr.Is(again, "0A000") { // a standby cannot be told to be READ WRITE
		return err
	}
	return again
}

// Purge purges, and tells the observer.
func (t Table) Purge(ctx context.Context, conn pg.Conn) (Purged, error) {
	s, err := t.SQL()
	if err != nil {
		return Purged{}, err
	}
	bodies, keys := t.ages()
	begun := time.Now()
	p, err := s.Purge(ctx, conn, bodies, keys)
	e := dedup.Event{Outcome: dedup.Purged, Held: time.Since(begun), Rows: p.Keys}
	if err != nil {
		e.Outcome, e.Code = dedup.PurgeFailed, pgerr.Code(err)
	}
	t.tell(ctx, e)
	return p, err
}

// attempted tells the observer of an attempt.
func (t Table) attempted(ctx context.Context, a Attempt) {
	e := dedup.Event{
		Source: a.Msg.Source, Operation: a.Msg.Operation, Code: pgerr.Code(a.Err),
		Waited: a.Waited, Held: a.Held,
	}
	switch {
	case a.Unknown:
		e.Outcome = dedup.Unknown
	case a.Result == ResultHandled:
		e.Outcome = dedup.Executed
	case a.Result == ResultDead:
		e.Outcome = dedup.DeadLetter
	case a.Result == ResultFailed:
		e.Outcome = dedup.Failed
	default:
		return
	}
	t.tell(ctx, e)
}

func (t Table) tell(ctx context.Context, e dedup.Event) {
	if t.Observer == nil {
		return
	}
	e.Table = cmp.Or(t.Name, DefaultTable)
	t.Observer.Observe(ctx, e)
}
