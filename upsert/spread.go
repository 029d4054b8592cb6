package upsert

import (
	"context"
	"fmt"

	"github.com/pgonce/pgonce/internal/pg"
)

// spread says whether a table is one of Citus: its rows lie in shards, on any node.
type spread struct{ on, parted bool }

// spreadSQL asks the extension's own catalog.
var spreadSQL = pg.Pin(`
SELECT count(*)::int8, coalesce(bool_or(c.relkind = 'p'), false)
  FROM pg_catalog.pg_dist_partition AS d
  JOIN pg_catalog.pg_class AS c ON c.oid = d.logicalrelid::oid
 WHERE c.oid = to_regclass($1::text)`)

func readSpread(ctx context.Context, conn pg.Conn, table pg.Name) (s spread, err error) {
	var n int64
	stmt := &pg.Stmt{SQL: spreadSQL, Args: []any{table.Quoted()}, Dest: []any{&n, &s.parted}}
	if err := conn.Send(ctx, stmt); err != nil {
		return s, fmt.Errorf("upsert: asking how %s is spread: %w", table, err)
	}
	s.on = n > 0
	return s, nil
}

// onSpread says why no upsert into a table of Citus can be made.
func (p *plan) onSpread(l *layout) []Problem {
	r := &report{table: p.table.String()}
	if l.spread.on && l.spread.parted && p.rule != firstWins {
		r.add(KindSpread, "spread a table without partitions, or write the statement by hand from SQL()",
			"it is a partitioned table of Citus, where PostgreSQL tells no update from an insert")
	}
	return r.problems
}

// manyOnSpread says why ExecMany cannot write to a table of Citus. DO UPDATE has to know which rows came without a
// value, and in a shard it can look nowhere.
func (p *plan) manyOnSpread(l *layout) error {
	carried := writer{p: p, l: l}.carried()
	if !l.spread.on || len(carried) == 0 {
		return nil
	}
	r := &report{table: p.table.String()}
	for _, m := range carried {
		r.add(KindSpread, fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP NOT NULL, or call Exec for each row",
			p.table.Quoted(), pg.Quote(m.column)),
			"column %s of SetIfNotNull is NOT NULL, and in a table of Citus ExecMany cannot leave it as it is", m.column)
	}
	return &VerifyError{Problems: r.problems}
}

// neverLocked tells an inserted row from an updated one, where no mark can be set: a shard takes immutable functions
// alone. DO UPDATE locks the row before it replaces it, and that lock goes with the new version.
const neverLocked = "t.xmax::text = '0'"

// judgedFrom returns where the rows given meet the stored ones, as the FROM of judged, and the CTEs before it. given is
// what [writer.ranked] returns.
//
// A look-up of each key in turn is what Citus refuses. There, the rows of all keys are read from the shards, and joined
// afterwards.
func (w writer) judgedFrom(given string) (before, from string) {
	if !w.l.spread.on {
		return "", fmt.Sprintf("(%s) AS e\n    LEFT JOIN LATERAL (%s\n                        OFFSET 0) AS s ON true",
			given, w.storedRow())
	}
	all, stored := w.cte("given"), w.cte("stored")
	rows := "SELECT " + fold(w.list("s"), 18) + w.found() + w.expressions() +
		"\n            FROM " + w.p.table.Quoted() + " AS s"
	if w.p.where != "" {
		rows += "\n           WHERE (" + pg.AsIs(w.p.where) + ")"
	}
	meet := joined(w.numbered(), " AND ", func(i int) string {
		return w.keyColumn("s", i) + w.equal(w.p.keys[i]) + w.keyColumn("e", i)
	})
	before = fmt.Sprintf("%s AS MATERIALIZED (\n  %s\n), %s AS MATERIALIZED (\n"+
		"  SELECT e.pgonce_pos AS pgonce_given, s.*\n    FROM (%s) AS s\n    JOIN %s AS e ON %s\n), ",
		all, given, stored, rows, all, meet)
	return before, fmt.Sprintf("%s AS e\n    LEFT JOIN %s AS s ON s.pgonce_given = e.pgonce_pos", all, stored)
}
