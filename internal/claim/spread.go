package claim

import (
	"context"

	"github.com/pgonce/pgonce/internal/pg"
)

// insertTimedSpreadSQL is insertTimedSQL for a table that Citus has spread. There an INSERT ... SELECT goes through an
// intermediate result, and costs several times one with VALUES. VALUES takes no condition. So the row is inserted
// whatever its time is, and says by which clock; withdrawSQL deletes it where the time lies outside. Nobody sees it in
// between: the same transaction does both.
const insertTimedSpreadSQL = `
INSERT INTO /*table*/processed_events (source, operation, key, payload_hash, processed_at, token)
VALUES ($1::text, $2::text, $3::text, $4::bytea, clock_timestamp(), $5::int8)
ON CONFLICT (key, operation, source) DO NOTHING
RETURNING token, (extract(epoch FROM processed_at AT TIME ZONE 'UTC') * 1000000)::int8`

// withdrawSQL deletes the row of this claim, and no other: $4 is its token.
const withdrawSQL = `
DELETE FROM /*table*/processed_events
 WHERE key = $3::text AND operation = $2::text AND source = $1::text AND token = $4::int8` + returningToken

// bySpread returns the statements for a table that Citus has spread.
func bySpread(t texts) texts {
	t[stmtInsertTimed], t[stmtInsertTimedMarked] = insertTimedSpreadSQL, marked(insertTimedSpreadSQL, 5)
	return t
}

// claimed reports whether ins has claimed the key. A row that was inserted outside of its window is withdrawn first:
// then there is none, and what is read next says why.
func (c *Claim) claimed(ctx context.Context, tx pg.Conn, ins *pg.Stmt) (bool, error) {
	fresh, err := c.wrote(StageClaim, ins)
	if err != nil || !fresh || !c.withdraws() {
		return fresh, err
	}
	if c.At >= c.claimedAt-c.Retention.Microseconds() && c.At <= c.claimedAt+c.Skew.Microseconds() {
		return true, nil
	}
	var token int64
	del := &pg.Stmt{
		SQL: c.SQL.text[stmtWithdraw], Args: []any{c.Source, c.Operation, c.Key, *c.token},
		Dest: []any{&token},
	}
	if err := tx.Send(ctx, del); err != nil {
		f := c.failed(StageClaim, err)
		f.unclear = true
		return false, f
	}
	if del.Rows != 1 {
		return false, &Failure{Stage: StageClaim, Err: errClaimGone, unclear: true}
	}
	return false, nil
}

// withdraws reports whether the claim inserts its row whatever the key's time is.
func (c *Claim) withdraws() bool { return c.Timed && c.SQL.spread && !c.SQL.weekly }
