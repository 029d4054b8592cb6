package schema

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
)

const notPostgres = "not PostgreSQL"

var versionSQL = pg.Pin(`SELECT version()`)

// yugabyte is how that server begins its version: PostgreSQL 15.12-YB-2025.2.0.0-b0 on ...
var yugabyte = regexp.MustCompile(`^PostgreSQL [0-9.]+-YB-`)

// Server reports a server that speaks the protocol of PostgreSQL, is another one, and differs in what the promise
// rests on.
func Server(ctx context.Context, conn pg.Conn) ([]Problem, error) {
	var version string
	if err := conn.Send(ctx, &pg.Stmt{SQL: versionSQL, Dest: []any{&version}}); err != nil {
		return nil, fmt.Errorf("ask for the server's version: %w", err)
	}
	name := ""
	switch {
	case strings.HasPrefix(version, "CockroachDB"):
		name = "CockroachDB"
	case yugabyte.MatchString(version):
		name = "YugabyteDB"
	}
	if name == "" {
		return nil, nil
	}
	return []Problem{{
		Kind: notPostgres, Fix: "-- use PostgreSQL, or Citus: dedup/CITUS.md says what differs",
		Message: "the server is " + name +
			", and nothing of this library was run there: what it answers to ON CONFLICT DO NOTHING, to locks " +
			"and to settings of a transaction differs from PostgreSQL, so that an effect may happen twice, or be lost",
	}}, nil
}
