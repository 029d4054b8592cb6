package outbox

import (
	"context"
	"fmt"
	"strings"

	"github.com/pgonce/pgonce/internal/boxes"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/schema"
)

// missingLane is the kind of problem that is an outbox's own; package outbox documents all.
const missingLane = "lane missing"

var (
	// How far the sequence is behind the rows, where the role may know.
	behindSQL = pg.Pin(`
SELECT coalesce(max(f.seq) - max(CASE WHEN has_sequence_privilege(s.seqrelid, 'USAGE, SELECT')
                                      THEN coalesce(pg_sequence_last_value(s.seqrelid), 0) ELSE 9223372036854775807 END), 0)
  FROM pg_catalog.pg_depend AS d
  JOIN pg_catalog.pg_sequence AS s ON s.seqrelid = d.objid
 CROSS JOIN generate_series(-32, 31) AS g (lane)
 CROSS JOIN LATERAL (SELECT o.seq FROM /*table*/outbox AS o WHERE o.lane = g.lane ORDER BY o.seq DESC LIMIT 1) AS f
 WHERE d.refobjid = $1::int8::oid AND d.deptype = 'i'`)

	countLanesSQL = pg.Pin(`SELECT count(*) FROM /*lanes*/outbox_lanes WHERE lane >= 0 AND lane < 32`)
)

// wantEvents and wantLanes are the columns that the statements name.
var (
	wantEvents = map[string]boxes.Column{
		"lane":        boxes.NotNull("smallint", ""),
		"seq":         boxes.NotNull("bigint", ""),
		"id":          boxes.NotNull("uuid", ""),
		"topic":       boxes.NotNull("text", "C"),
		"key":         boxes.NotNull("text", "C"),
		"headers":     boxes.Nullable("jsonb", ""),
		"payload":     boxes.NotNull("bytea", ""),
		"appended_at": boxes.NotNull("timestamp with time zone", ""),
		"attempts":    boxes.NotNull("integer", ""),
		"retry_at":    boxes.Nullable("timestamp with time zone", ""),
		"last_error":  boxes.Nullable("text", "default"),
	}
	wantLanes = map[string]boxes.Column{
		"lane":        boxes.NotNull("smallint", ""),
		"token":       boxes.NotNull("bigint", ""),
		"lease_until": boxes.NotNull("timestamp with time zone", ""),
	}
)

// verify reads the catalog and returns what keeps the two tables from being an outbox, as the current role sees them.
func verify(ctx context.Context, conn pg.Conn, name pg.Name) ([]schema.Problem, error) {
	v := &boxes.Verifier{Kind: Tables(), Conn: conn}
	ddl := v.Kind.DDL(name)
	oid, err := v.Table(ctx, name, ddl, wantEvents)
	if err != nil || oid == 0 {
		return v.Problems, err
	}
	if err := events(ctx, v, name, oid); err != nil {
		return nil, err
	}
	oid, err = v.Table(ctx, lanesOf(name), ddl, wantLanes)
	if err != nil || oid == 0 {
		return v.Problems, err
	}
	var n int64
	if err := conn.Send(ctx, &pg.Stmt{SQL: render(name, countLanesSQL), Dest: []any{&n}}); err != nil {
		return nil, fmt.Errorf("count the lanes: %w", err)
	}
	if n != Lanes {
		v.Report(lanesOf(name), missingLane, fmt.Sprintf("%d of the %d lanes have no row: their events are never published",
			Lanes-n, Lanes),
			"INSERT INTO "+lanesOf(name).Quoted()+" (lane) SELECT g FROM generate_series(0, 31) AS g ON CONFLICT DO NOTHING;")
	}
	return v.Problems, nil
}

// events checks what holds of the table of events alone.
func events(ctx context.Context, v *boxes.Verifier, name pg.Name, oid int64) error {
	all, err := v.Indexes(ctx, oid)
	if err != nil {
		return err
	}
	var key, held, due bool
	for _, ix := range all {
		key = key || ix.Columns == "lane,seq" && ix.Proof
		held = held || ix.Columns == "lane,key,seq"
		due = due || ix.Columns == "lane,retry_at"
	}
	for _, ix := range []struct {
		there     bool
		what, fix string
	}{
		{key, "(lane, seq), which is unique", "ALTER TABLE " + name.Quoted() + " ADD PRIMARY KEY (lane, seq);"},
		{held, "(lane, key, seq)", "CREATE INDEX ON " + name.Quoted() + " (lane, key, seq) WHERE lane < 0;"},
		{due, "(lane, retry_at)", "CREATE INDEX ON " + name.Quoted() +
			" (lane, retry_at) WHERE lane < 0 AND retry_at IS NOT NULL;"},
	} {
		if !ix.there {
			v.Report(name, boxes.MissingIndex, "there is no valid index on "+ix.what+": a claim reads the whole table", ix.fix)
		}
	}
	if err := v.Around(ctx, name, oid); err != nil {
		return err
	}
	var late int64
	s := &pg.Stmt{SQL: render(name, behindSQL), Args: []any{oid}, Dest: []any{&late}}
	if err := v.Conn.Send(ctx, s); err != nil {
		return fmt.Errorf("compare the sequence with the rows: %w", err)
	}
	if late > 0 {
		v.Report(name, boxes.NoOrder, "the sequence of the column seq is behind the rows: what is appended now comes "+
			"before them",
			fmt.Sprintf("SELECT setval(pg_get_serial_sequence('%s', 'seq'), (SELECT max(seq) FROM %s));",
				strings.ReplaceAll(name.Quoted(), "'", "''"), name.Quoted()))
	}
	return nil
}
