package claim

import (
	"fmt"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

// The statements below are valid SQL as they stand. What is sent says of every operator, function and type that it is
// pg_catalog's ([pg.Pin]), and has the table's quoted name in place of [pg.Marker].

// insertSQL is the claim. The columns of the conflict are always named: without them the statement would also absorb a
// clash with any other unique constraint of the table, and fail with 55000 where one of them is deferrable. $5 is the
// claim's token, see [newToken].
const insertSQL = `
INSERT INTO /*table*/processed_events (source, operation, key, payload_hash, token)
VALUES ($1::text, $2::text, $3::text, $4::bytea, $5::int8)
ON CONFLICT (key, operation, source) DO NOTHING` + returningToken

// insertTimedSQL is the claim of a key with a time of its own: nothing is inserted where the time ($5, microseconds
// since 1970) lies before the retention window ($6, microseconds), or further in the future than $7.
// clock_timestamp(), not now(): a transaction that has been open for a while would still see the window of its
// beginning, and a purge may have gone further meanwhile. The bound of the future is what keeps a row there until its
// key's time has left the window: see package retention. For the same reason the row is as old as the claim, and not
// as its transaction. $8 is the token.
const insertTimedSQL = `
INSERT INTO /*table*/processed_events (source, operation, key, payload_hash, processed_at, token)
SELECT $1::text, $2::text, $3::text, $4::bytea, clock_timestamp(), $8::int8
 WHERE timestamptz 'epoch' + $5::int8 * interval '1 microsecond' >= clock_timestamp() - $6::int8 * interval '1 microsecond'
   AND timestamptz 'epoch' + $5::int8 * interval '1 microsecond' <= clock_timestamp() + $7::int8 * interval '1 microsecond'
ON CONFLICT (key, operation, source) DO NOTHING` + returningToken

// returningToken makes a statement prove that it wrote the row, by a row that comes back: not every server's command
// tag can be believed. RETURNING calls no function that is not immutable, for some servers refuse that.
const returningToken = `
RETURNING token`

// returningAttempt does the same for a statement whose row may have no token: an older version of the library made it.
const returningAttempt = `
RETURNING attempt::int8`

// marked has a claim, or a confirmation, mark its transaction: see [pg.Mark]. The mark, which is also the token, is the
// parameter $n with the count of the transaction's claims in its lower bits.
func marked(sql string, n int) string {
	token := fmt.Sprintf("$%d::int8", n)
	return strings.Replace(sql, token, fmt.Sprintf(`pg_catalog.set_config('%[1]s', (%[2]s
       | ((coalesce(nullif(pg_catalog.current_setting('%[1]s', true), ''), '0')::int8 & %[3]d::int8) + 1::int8))::text, true)::int8`,
		pg.Mark, token, pg.MarkCount), 1)
}

// readSQL reads the row that the claim met. It is a statement of its own, for at READ COMMITTED a new statement sees
// what was committed while the claim waited; the same read in a CTE of the claim would not. Bytes come in hex by our
// own doing: where a mode of the driver gets them as text, the session's bytea_output decides, and pgx reads one of
// its two.
const readSQL = `
SELECT encode(payload_hash, 'hex'), encode(value, 'hex'), lease_until IS NULL, coalesce(lease_until > clock_timestamp(), false), failed, attempt,
       token,
       (extract(epoch FROM processed_at) * 1000000)::int8,
       (extract(epoch FROM clock_timestamp() - processed_at) * 1000000)::int8
  FROM /*table*/processed_events
 WHERE key = $3::text AND operation = $2::text AND source = $1::text`

// windowSQL tells whether a key's time lies before the retention window, and whether it is too far in the future.
const windowSQL = `
SELECT timestamptz 'epoch' + $1::int8 * interval '1 microsecond' < clock_timestamp() - $2::int8 * interval '1 microsecond',
       timestamptz 'epoch' + $1::int8 * interval '1 microsecond' > clock_timestamp() + $3::int8 * interval '1 microsecond'`

// forgetSQL deletes the key of an effect that is done; a reservation is not for [Forget] to end.
const forgetSQL = `
DELETE FROM /*table*/processed_events
 WHERE key = $3::text AND operation = $2::text AND source = $1::text AND lease_until IS NULL` + returningAttempt

// storeSQL keeps what fn returned, in the row that its own transaction inserted, and in no other: fn may have led the
// name to another table, or rolled back the claim. $5 is the row's token.
const storeSQL = `
UPDATE /*table*/processed_events SET value = $4::bytea
 WHERE key = $3::text AND operation = $2::text AND source = $1::text AND token = $5::int8` + returningToken

// proveSQL lets what follows it in one round trip happen only where the row is there that this call has just claimed:
// else it fails with [pg.NotNew], before anything else was written. A row that was claimed by nobody, by another
// call, or under another name by a trigger, is not. The text that cannot be read as a number is for the server's log.
// $4 is the token.
const proveSQL = `
SELECT coalesce(max(token)::text, 'pgonce: no error, the key is not new and its effects were not run')::int8
  FROM /*table*/processed_events
 WHERE key = $3::text AND operation = $2::text AND source = $1::text AND token = $4::int8`

// aloneSQL fails with [pg.NotNew] on a cluster of Citus. There statements that travel together without BEGIN are
// committed one by one, on the nodes that they are for.
const aloneSQL = `SELECT coalesce(to_regclass('pg_catalog.citus_shards')::text, '0')::int8`

// lockSQL takes the lock that an INSERT takes, and of every partition.
const lockSQL = `LOCK TABLE /*table*/processed_events IN ROW EXCLUSIVE MODE`

// The statements of a limited wait. lock_timeout would begin anew for each holder that gives up, so that a row of them
// multiplies it; statement_timeout is one limit for the whole claim. A smaller one of the caller's stays.
const (
	savepointSQL = `SAVEPOINT pgonce_claim`
	limitSQL     = `
SELECT set_config('pgonce.statement_timeout', current_setting('statement_timeout'), true),
       set_config('statement_timeout',
                  CASE WHEN extract(epoch FROM current_setting('statement_timeout')::interval) * 1000 >= 1
                            AND extract(epoch FROM current_setting('statement_timeout')::interval) * 1000 <= $1::int8
                       THEN current_setting('statement_timeout')
                       ELSE ($1::int8)::text END, true)`
	unlimitSQL = `SELECT set_config('statement_timeout', current_setting('pgonce.statement_timeout'), true)`

	// Those of a last look, see [look]. lock_timeout does not reach the other nodes of Citus, of which the last column
	// tells.
	lockLimitSQL = `
SELECT set_config('pgonce.lock_timeout', current_setting('lock_timeout'), true),
       set_config('lock_timeout', '` + lastLookLock + `', true),
       to_regclass('pg_catalog.citus_shards') IS NOT NULL`
	lockUnlimitSQL = `SELECT set_config('lock_timeout', current_setting('pgonce.lock_timeout'), true)`

	rollbackSQL = `ROLLBACK TO SAVEPOINT pgonce_claim`
	releaseSQL  = `RELEASE SAVEPOINT pgonce_claim`
)

// A statement is one of those on the table. To add one: a name here, and its text in written.
type statement int

const (
	stmtInsert statement = iota
	stmtInsertMarked
	stmtInsertTimed
	stmtInsertTimedMarked
	stmtRead
	stmtForget
	stmtStore
	stmtProve
	stmtReserve
	stmtReserveTimed
	stmtTakeOver
	stmtConfirm
	stmtConfirmMarked
	stmtFail
	stmtExtend
	stmtEnd
	stmtRelease
	stmtVoid
	stmtPending
	stmtInsertMany
	stmtInsertManyMarked
	stmtReadMany
	stmtLock
	stmtWithdraw
	statements // how many there are
)

// written holds the statements before a table's name is put in.
var written = texts{
	stmtInsert: insertSQL, stmtInsertMarked: marked(insertSQL, 5),
	stmtInsertTimed: insertTimedSQL, stmtInsertTimedMarked: marked(insertTimedSQL, 8),
	stmtRead: readSQL, stmtForget: forgetSQL, stmtStore: storeSQL, stmtProve: proveSQL,
	stmtReserve: reserveSQL, stmtReserveTimed: reserveTimedSQL, stmtTakeOver: takeOverSQL,
	stmtConfirm: confirmSQL, stmtConfirmMarked: marked(confirmMarkedSQL, 7),
	stmtFail: failSQL, stmtExtend: extendSQL, stmtEnd: endSQL, stmtRelease: giveUpSQL, stmtVoid: voidSQL,
	stmtPending:    pendingSQL,
	stmtInsertMany: insertManySQL, stmtInsertManyMarked: marked(insertManySQL, 8), stmtReadMany: readManySQL,
	stmtLock: lockSQL, stmtWithdraw: withdrawSQL,
}

type texts [statements]string

// each returns what f makes of each statement.
func (t texts) each(f func(string) string) texts {
	for i := range t {
		t[i] = f(t[i])
	}
	return t
}

// SQL holds the statements on one table.
type SQL struct {
	weekly bool // layout Weekly: the last parameter is the key's time
	spread bool // over the nodes of Citus
	name   pg.Name
	table  string // for messages
	text   texts
}

// The statements of every layout but Weekly, and of that one.
var (
	plainSQL  = SQL{text: written.each(pg.Pin)}
	weeklySQL = SQL{text: byWeek(written).each(pg.Pin), weekly: true}

	spreadSQL = SQL{text: bySpread(written).each(pg.Pin), spread: true}

	defaultSQL    = plainSQL.on(pg.Name{Table: pg.DefaultTable})
	defaultWeekly = weeklySQL.on(pg.Name{Table: pg.DefaultTable})
	defaultSpread = spreadSQL.on(pg.Name{Table: pg.DefaultTable})

	pinnedWindow, pinnedLimit, pinnedUnlimit = pg.Pin(windowSQL), pg.Pin(limitSQL), pg.Pin(unlimitSQL)
	pinnedWindowMany                         = pg.Pin(windowManySQL)
	pinnedAlone                              = pg.Pin(aloneSQL)
	pinnedLockLimit, pinnedLockUnlimit       = pg.Pin(lockLimitSQL), pg.Pin(lockUnlimitSQL)
)

// For returns the statements on the table of this name ("" is [pg.DefaultTable]), or an error that says what is wrong
// with the name. weekly: the table has layout Weekly. spread: Citus has spread it; the statements are right where it
// has not.
func For(table string, weekly, spread bool) (SQL, error) {
	all, same := plainSQL, defaultSQL
	switch {
	case weekly:
		all, same = weeklySQL, defaultWeekly
	case spread:
		all, same = spreadSQL, defaultSpread
	}
	name, err := pg.TableName(table)
	switch {
	case err != nil:
		return SQL{}, err
	case name == same.name:
		return same, nil
	}
	return all.on(name), nil
}

// on puts a table's name into the statements.
func (s SQL) on(name pg.Name) SQL {
	s.name, s.table, s.text = name, name.String(), s.text.each(name.Into)
	return s
}

// Texts returns every statement, each once, for tests that prepare them on a server.
func (s SQL) Texts() []string {
	return append(s.text[:], pinnedWindow, pinnedLimit, pinnedUnlimit, pinnedWindowMany, pinnedLockLimit,
		pinnedLockUnlimit, pinnedAlone)
}

// Table returns the table's name for people.
func (s SQL) Table() string { return s.table }
