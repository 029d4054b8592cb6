package dedup

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/schema"
)

// Problem is one thing that keeps a table from backing its keys.
type Problem struct {
	Table string // the table, with its schema where it was found in one

	// Kind is a short name that stays the same from version to version: "table missing", "table in another schema", "not a
	// table", "not logged", "column missing", "column type", "column nullable", "column default", "column generated", "collation",
	// "constraint missing", "constraint deferrable", "index invalid", "index partial", "index on an expression", "index
	// has more columns", "other unique index", "trigger", "rule", "row security", "rights missing";
	// of partitioned layouts: "layout", "partition missing", "partition half detached"; of Weekly: "check missing", "check not
	// validated", "default partition", "too few partitions ahead".
	Kind string

	Message string // what is wrong, and what it would lead to
	Fix     string // the statement that mends it; read it before you run it
}

// VerifyError lists every problem that [Verify] found.
type VerifyError struct{ Problems []Problem }

// Error gives a line to each problem, with the statement that mends it.
func (e *VerifyError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d problem(s)", len(e.Problems))
	for _, p := range e.Problems {
		fmt.Fprintf(&b, "\n%s: %s: %s\n\tmend it with: %s", p.Table, p.Kind, p.Message, strings.ReplaceAll(p.Fix, "\n", "\n\t"))
	}
	return b.String()
}

// Verify proves from the catalog that each table backs its keys; with none given, the zero [Table]. It asks: is there a
// unique index on exactly the key's columns; is it valid, ready, immediate, without WHERE and expressions; can none of
// the columns be NULL; is their collation "C"; can no BEFORE INSERT trigger, rule or row security change or hide a row;
// is the table a logged one, and the one that the search path means; has the current role the rights to claim.
//
// Of partitioned layouts it asks as well: do the partitions of [Hash] take every key, and those of [Weekly] every week of the
// window and four to come; is the week a function of the key, proved by validated CHECKs; is there no default partition, and
// none that is half detached, not logged, or has an invalid index or a trigger of its own.
//
// It returns nil when all of it holds, a *[VerifyError] with every problem where not, and any other error when it could
// not ask. It reads pg_catalog only, takes no lock that a claim could wait for, and answers for the current role and search
// path: call it on the connections that claim, at the start of the program or in its tests. Safe for concurrent use.
func Verify(ctx context.Context, db interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}, tables ...Table,
) error {
	resolved, err := resolveAll(tables)
	if err != nil {
		return fmt.Errorf("dedup: verify: %w", err)
	}
	var all []schema.Problem
	for _, t := range resolved {
		problems, err := schema.Verify(ctx, pg.FromPgx(db), t)
		if err != nil {
			return fmt.Errorf("dedup: verify: %w", err)
		}
		all = append(all, problems...)
	}
	if err := verifyError(all); err != nil {
		return fmt.Errorf("dedup: verify: %w", err)
	}
	return nil
}

// verifyError returns nil for no problems.
func verifyError(problems []schema.Problem) error {
	if len(problems) == 0 {
		return nil
	}
	e := &VerifyError{}
	for _, p := range problems {
		e.Problems = append(e.Problems, Problem(p))
	}
	return e
}
