package claim

import (
	"fmt"
	"strings"
	"time"
)

// WeeklySkew is how far in the future a key's time may lie on a table of layout Weekly, for senders whose clocks are
// ahead of the database's. A partition of the next week is always there.
const WeeklySkew = 24 * time.Hour

// insertWeeklySQL is the claim on a table of layout Weekly: nothing is inserted where the time ($5, microseconds
// since 1970) lies before the retention window ($6, microseconds) or further in the future than $7. The bucket is
// computed here: a date made in Go would be read by the session's time zone in some exec modes. clock_timestamp(),
// and $8: see insertTimedSQL.
const insertWeeklySQL = `
INSERT INTO /*table*/processed_events (source, operation, key, payload_hash, event_time, bucket, token)
SELECT $1::text, $2::text, $3::text, $4::bytea, e.at, date_trunc('week', e.at AT TIME ZONE 'UTC')::date, $8::int8
  FROM (SELECT timestamptz 'epoch' + $5::int8 * interval '1 microsecond') AS e (at)
 WHERE e.at >= clock_timestamp() - $6::int8 * interval '1 microsecond'
   AND e.at <= clock_timestamp() + $7::int8 * interval '1 microsecond'
ON CONFLICT (key, operation, source, bucket) DO NOTHING` + returningToken

// reserveWeeklySQL is reserveTimedSQL for layout Weekly; $8 is the allowed future, $9 the token.
const reserveWeeklySQL = `
INSERT INTO /*table*/processed_events (source, operation, key, payload_hash, processed_at, lease_until, event_time, bucket, token)
SELECT $1::text, $2::text, $3::text, $4::bytea, clock_timestamp(), clock_timestamp() + $5::int8 * interval '1 microsecond',
       e.at, date_trunc('week', e.at AT TIME ZONE 'UTC')::date, $9::int8
  FROM (SELECT timestamptz 'epoch' + $6::int8 * interval '1 microsecond') AS e (at)
 WHERE e.at >= clock_timestamp() - $7::int8 * interval '1 microsecond'
   AND e.at <= clock_timestamp() + $8::int8 * interval '1 microsecond'
ON CONFLICT (key, operation, source, bucket) DO NOTHING` + returningLease

// Every other statement names its row by this condition; on a table of layout Weekly by the bucket as well, which makes
// the server look into one partition. The expression is immutable (timestamp, not timestamptz), so that the planner
// knows the partition and locks no other.
const (
	keySQL    = "\n WHERE key = $3::text AND operation = $2::text AND source = $1::text"
	bucketSQL = "\n   AND bucket = date_trunc('week', timestamp 'epoch' + $%d::int8 * interval '1 microsecond')::date"
)

// byWeek returns the statements for layout Weekly. Each but the claims takes the key's time as one more parameter,
// the last.
func byWeek(t texts) texts {
	t[stmtInsertTimed], t[stmtInsertTimedMarked] = insertWeeklySQL, marked(insertWeeklySQL, 8)
	t[stmtReserveTimed] = reserveWeeklySQL
	t[stmtInsertMany], t[stmtInsertManyMarked] = insertManyWeeklySQL, marked(insertManyWeeklySQL, 8)
	t[stmtReadMany] = readManyWeeklySQL
	t[stmtPending] = strings.Replace(t[stmtPending], "\n  FROM",
		", (extract(epoch FROM event_time) * 1000000)::int8\n  FROM", 1)
	return t.each(func(sql string) string {
		n := 0
		for strings.Contains(sql, fmt.Sprintf("$%d::", n+1)) {
			n++
		}
		return strings.Replace(sql, keySQL, keySQL+fmt.Sprintf(bucketSQL, n+1), 1) // a claim has none
	})
}

// args are the parameters of a statement that names a row: the key, then its own, then what finds the partition.
func (c *Claim) args(own ...any) []any {
	all := append(c.key(), own...)
	if c.SQL.weekly {
		all = append(all, c.At)
	}
	return all
}
