package schema

import (
	"context"

	"github.com/pgonce/pgonce/internal/pg"
)

const asyncCommit = "asynchronous commit"

var sessionSQL = pg.Pin(`SELECT pg_catalog.current_setting('synchronous_commit')`)

// Session returns what keeps the settings of the current session from being enough for the promise, whatever the table.
func Session(ctx context.Context, conn pg.Conn) ([]Problem, error) {
	var commit string
	if err := conn.Send(ctx, &pg.Stmt{SQL: sessionSQL, Dest: []any{&commit}}); err != nil {
		return nil, err
	}
	if commit != "off" {
		return nil, nil
	}
	return []Problem{{
		Kind: asyncCommit, Fix: "SET synchronous_commit = on;",
		Message: "synchronous_commit is off: a crash of the server loses the last transactions that it said were committed, " +
			"so that a message which was acknowledged meanwhile has no effect, and a reserved call may be made twice",
	}}, nil
}
