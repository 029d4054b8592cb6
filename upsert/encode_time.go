package upsert

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// encodeDuration writes d as an interval. Not as a number of microseconds: PostgreSQL 14 takes no more than 35
// minutes of them.
func encodeDuration(d time.Duration) string {
	us, sign := d.Microseconds(), ""
	if us < 0 {
		us, sign = -us, "-"
	}
	return fmt.Sprintf("%s%d:%02d:%02d.%06d", sign, us/3_600_000_000, us/60_000_000%60, us/1_000_000%60, us%1_000_000)
}

// encodeInterval gives each part its sign: with IntervalStyle sql_standard a minus in front would count for all that
// have none.
func encodeInterval(i pgtype.Interval) string {
	us, sign := i.Microseconds, "+"
	if us < 0 {
		sign = "-"
	}
	abs := func(n int64) int64 { return max(n, -n) }
	hours, us := us/3_600_000_000, abs(us%3_600_000_000)
	return fmt.Sprintf("%+d mon %+d day %s%d:%02d:%02d.%06d", i.Months, i.Days, sign, uint64(abs(hours)), us/60_000_000,
		us/1_000_000%60, us%1_000_000)
}

const (
	day    = "-01-02"
	moment = "-01-02 15:04:05.999999"
)

// encodeMoment refuses what drivers store in different forms, each by its own idea of a time as text.
func encodeMoment(t time.Time, oid uint32) (string, error) {
	switch oid {
	case pgtype.DateOID, pgtype.TimestampOID, pgtype.TimestamptzOID, pgtype.TimeOID:
		return encodeTime(t, oid), nil
	case pgtype.JSONOID, pgtype.JSONBOID:
		b, err := json.Marshal(t)
		return string(b), err
	}
	return "", errTime
}

// encodeTime cuts to the microsecond that PostgreSQL keeps: pgx cuts as well, lib/pq lets the server round, and the
// same event through both would conflict with itself.
func encodeTime(t time.Time, oid uint32) string {
	switch oid {
	case pgtype.DateOID: // a day is meant, so the zone that the value carries counts
		return yearly(t, day, "")
	case pgtype.TimeOID:
		return t.Truncate(time.Microsecond).Format("15:04:05.999999")
	case pgtype.TimestampOID: // so does a clock's reading, as with the drivers themselves
		return yearly(t, moment, "")
	}
	return yearly(t.UTC().Truncate(time.Microsecond), moment, "+00")
}

// yearly formats t, in front of zone, with a year as PostgreSQL reads it: there is no year 0, and years before it are
// BC. layout begins after the year.
func yearly(t time.Time, layout, zone string) string {
	year, month, dom := t.Date()
	if year < 1000 || year > 9999 {
		era := ""
		if year <= 0 {
			year, era = 1-year, " BC"
		}
		return fmt.Sprintf("%04d", year) + t.Format(layout) + zone + era
	}
	// By hand, as it is a quarter of the work for a row that has one.
	var buf [40]byte
	two := func(b []byte, n int) []byte { return append(b, byte('0'+n/10), byte('0'+n%10)) }
	b := two(two(buf[:0], year/100), year%100)
	b = two(append(two(append(b, '-'), int(month)), '-'), dom)
	if layout == moment {
		hour, minute, second := t.Clock()
		b = two(append(two(append(two(append(b, ' '), hour), ':'), minute), ':'), second)
		if us := t.Nanosecond() / 1000; us > 0 {
			b = two(two(two(append(b, '.'), us/10000), us/100%100), us%100)
		}
	}
	return string(append(b, zone...))
}
