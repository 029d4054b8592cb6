package schema

import (
	"context"
	"fmt"

	"github.com/pgonce/pgonce/internal/pg"
)

// Alone reports a table that does not do on Citus, an inbox or an outbox: its statements lock, sort and number all of
// its rows, and so on one node only. torn says what is lost where Citus commits on other nodes and then not on this
// one.
func Alone(ctx context.Context, conn pg.Conn, oid int64, torn string) ([]Problem, error) {
	var there bool
	if err := conn.Send(ctx, &pg.Stmt{SQL: citusSQL, Dest: []any{&there}}); err != nil || !there {
		return nil, err
	}
	var s shape
	if err := conn.Send(ctx, shapeStmt(oid, &s)); err != nil {
		return nil, fmt.Errorf("ask Citus for the table: %w", err)
	}
	switch {
	case s.kind != "local":
		return []Problem{{
			Kind: isSpread, Message: "Citus has the table on its nodes, and refuses statements on it that lock its rows in an order",
			Fix: "-- no fix: it works in a database that has no tables in shards",
		}}, nil
	case s.others:
		return []Problem{{
			Kind: notSpread, Message: "the table is one of this node alone, beside tables in shards: Citus commits the shards " +
				"first, so that " + torn,
			Fix: "-- no fix: it works in a database that has no tables in shards",
		}}, nil
	}
	return nil, nil
}
