package inbox

import (
	"context"
	"slices"
	"strings"

	"github.com/pgonce/pgonce/internal/boxes"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/schema"
)

// The kinds of problems that are an inbox's own; package inbox documents all.
const (
	noConstraint = "constraint missing"
	otherUnique  = "other unique index"
)

// columns are those that the statements name.
func columns() map[string]boxes.Column {
	const moment = "timestamp with time zone"
	return map[string]boxes.Column{
		"source":      boxes.NotNull("text", "C"),
		"operation":   boxes.NotNull("text", "C"),
		"message_id":  boxes.NotNull("text", "C"),
		"seq":         boxes.NotNull("bigint", ""),
		"key":         boxes.NotNull("text", "C"),
		"headers":     boxes.Nullable("json", ""),
		"body":        boxes.Nullable("bytea", ""),
		"received_at": boxes.NotNull(moment, ""),
		"state":       boxes.NotNull("smallint", ""),
		"due_at":      boxes.Nullable(moment, ""),
		"attempt":     boxes.NotNull("integer", ""),
		"token":       boxes.Nullable("bigint", ""),
		"error_class": boxes.Nullable("text", "C"),
		"last_error":  boxes.Nullable("text", "default"),
		"finished_at": boxes.Nullable(moment, ""),
	}
}

// verify reads the catalog and returns what keeps the table from being an inbox, as the current role sees it.
func verify(ctx context.Context, conn pg.Conn, name pg.Name) ([]schema.Problem, error) {
	v := &boxes.Verifier{Kind: Tables(), Conn: conn}
	oid, err := v.Table(ctx, name, v.Kind.DDL(name), columns())
	if err != nil || oid == 0 {
		return v.Problems, err
	}
	if err := indexes(ctx, v, name, oid); err != nil {
		return nil, err
	}
	return v.Problems, v.Around(ctx, name, oid)
}

func indexes(ctx context.Context, v *boxes.Verifier, name pg.Name, oid int64) error {
	all, err := v.Indexes(ctx, oid)
	if err != nil {
		return err
	}
	have := map[string]bool{}
	key := false
	var others []string
	for _, ix := range all {
		names := strings.Split(ix.Columns, ",")
		slices.Sort(names)
		switch own := slices.Equal(names, []string{"message_id", "operation", "source"}); {
		case own && ix.Proof:
			key = true
		case ix.Unique && ix.Columns != "seq":
			others = append(others, ix.Columns)
		}
		have[signature(ix.Columns, ix.Where)] = true
	}
	quoted := name.Quoted()
	if !key {
		v.Report(name, noConstraint, "no valid unique index is on message_id, operation and source, and on nothing else: "+
			"messages that come again are handled again",
			"ALTER TABLE "+quoted+" ADD PRIMARY KEY (message_id, operation, source);")
	}
	for _, cols := range others {
		v.Report(name, otherUnique, "another unique index ("+cols+") refuses messages that are new",
			"-- drop it, or its constraint")
	}
	for _, line := range strings.Split(v.Kind.DDL(name), ";\n") {
		// The columns stand behind the table, in parentheses.
		_, on, found := strings.Cut(line, "CREATE INDEX IF NOT EXISTS ")
		if !found {
			continue
		}
		_, cols, _ := strings.Cut(on, " ON "+quoted+" (")
		cols, where, _ := strings.Cut(cols, ")")
		if !have[signature(cols, where)] {
			v.Report(name, boxes.MissingIndex, "there is no valid index on ("+cols+"): a statement reads the whole table",
				"CREATE INDEX IF NOT EXISTS "+on+";")
		}
	}
	return nil
}

// signature tells the indexes apart: by their columns, and those that their condition names.
func signature(cols, where string) string {
	s := strings.ReplaceAll(cols, " ", "")
	for _, col := range []string{"finished_at", "due_at", "token", "body", "key"} {
		if strings.Contains(where, col) {
			s += " " + col
		}
	}
	return s
}
