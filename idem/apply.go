package idem

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/pg"
)

// Apply is [Run] for effects that need no answer before they are committed: claim, effects and COMMIT are one round
// trip. Each effect is an INSERT, UPDATE, DELETE, MERGE, SELECT, WITH, VALUES or NOTIFY. effects is not changed.
//
//   - First call: the effects run, in order, and Apply returns Executed. Nothing is looked at in between: an UPDATE
//     that finds no row is an effect, too. Where it must find one, use Run.
//   - Duplicate: Apply returns Duplicate. No effect runs, and nothing is written. With MaxWait it takes a second round trip.
//   - Concurrent duplicate: as with [Run]. One that had to wait takes a second round trip.
//   - An effect fails: nothing stays, and its error comes back, with the effect's number in front of its text. So it is
//     where it meets a constraint of your own table; that is no duplicate.
//   - Only COMMIT fails, as for a deferred constraint: an *[Error] of [StageCommit].
//
// On Citus, where statements without BEGIN are not one transaction, Apply is refused by the first of them, with an
// ERROR 22P02 in the log, and goes on as Run: four round trips.
//
// What may be tried again is, as Run does, and a lost answer is settled in the same way. A ctx that ends behind the
// first statement, however, can leave the outcome unknown: the server has all it needs to commit. The *[Error] says
// so.
//
// On each new connection, a pgx that prepares statements takes one round trip more for those that it sees for the first
// time; in QueryExecModeDescribeExec always. An error, but not a duplicate, makes it prepare them anew.
//
// A duplicate ends in the server's log as an ERROR 22P02, whose text says that it is none, and in a tracer of pgx as a
// batch that failed. Nothing but an error stops the statements behind it. Where that disturbs, use Run.
//
// Refused before any SQL, as an *[Error] of [StageFn]: any other statement, for it could end the transaction; two in
// one text; a prepared statement by its name; a callback, whose error would come too late; an empty batch. Of
// TxOptions, BeginQuery and CommitQuery are refused ([StageSettings]). With MaxWait, a last look is a transaction as
// Run's.
func (o Once) Apply(ctx context.Context, db DB, key Key, effects *pgx.Batch) (Outcome, error) {
	c, err := o.claim(key)
	if err != nil {
		return 0, err
	}
	lend := lender(db)
	whole, err := pg.NewPgxWhole(db, lend, o.TxOptions, effects)
	if err != nil {
		stage := claim.StageFn
		if errors.Is(err, pg.ErrOptions) {
			stage = claim.StageSettings
		}
		return 0, o.translate(key.Scope(), c.Refused(ctx, &claim.Failure{Stage: stage, Err: err}))
	}
	res, err := claim.Apply(ctx, pg.FromPgxLender(db, lend, o.TxOptions), c, whole)
	return Outcome(res.Outcome), o.translate(key.Scope(), err)
}
