package dedup

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/schema"
	"github.com/pgonce/pgonce/internal/tables"
)

// Problem is one thing that keeps a table from backing its keys.
type Problem struct {
	Table string // the table, with its schema where it was found in one; empty where it is the session's

	Kind Kind

	Message string // what is wrong, and what it would lead to
	Fix     string // the statement that fixes it, or advice in a comment; read it before you run it
}

// VerifyError lists every problem that [Verify] found, in the order in which to run their fixes. Stop at one that
// fails: a later one, or its replacement, drops what keeps a key unique so far.
type VerifyError struct{ Problems []Problem }

// Error gives a line to each problem, with the statement that fixes it.
func (e *VerifyError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d problem(s), to be fixed in this order", len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n")
		if p.Table != "" {
			b.WriteString(p.Table + ": ")
		}
		fmt.Fprintf(&b, "%s: %s\n\tmend it with: %s", p.Kind, p.Message, strings.ReplaceAll(p.Fix, "\n", "\n\t"))
	}
	return b.String()
}

// Except returns e without the problems of the kinds given, and nil where none is left:
//
//	var found *dedup.VerifyError
//	if errors.As(err, &found) {
//		err = found.Except(dedup.KindAsynchronousCommit) // what a crash loses is sent again by our sender
//	}
func (e *VerifyError) Except(kinds ...Kind) error {
	left := &VerifyError{}
	for _, p := range e.Problems {
		if !slices.Contains(kinds, p.Kind) {
			left.Problems = append(left.Problems, p)
		}
	}
	if len(left.Problems) == 0 {
		return nil
	}
	return left
}

// Verify proves from the catalog that each table backs its keys; with none given, the zero [Table]. It returns nil when
// all of it holds, a *[VerifyError] with every problem and its fix where not, and any other error when it could not
// ask. Call it on the connections that claim, when the program starts or in its tests: it answers for the current role,
// session and search path.
//
// Each [Kind] names what it looks for:
//
//   - a unique index on exactly the key's columns: valid, ready, immediate, without WHERE and expressions;
//   - columns that cannot be NULL, in collation "C", with the defaults that a claim relies on;
//   - no trigger, rule, foreign key, CHECK, EXCLUDE constraint, inheritance or row security that can refuse, change,
//     keep, delete or hide a row;
//   - a logged table, the one that the search path means, with the rights to claim; a Retention that covers Resends;
//   - partitions of [Hash] that take every key, and of [Weekly] every week of the window and four to come, by validated
//     CHECKs; none a default, half detached, not logged, or with an invalid index or a trigger of its own;
//   - replication that carries its updates and deletes; a place on Citus where key and effect cannot part;
//   - synchronous_commit and client_encoding of the session; fsync and full_page_writes of the server. A server for
//     tests that has these off sets pgonce.throwaway = on.
//
// What the catalog cannot tell is reported; accept it with [VerifyError.Except]:
//
//   - every enabled trigger on INSERT, UPDATE or DELETE: one that only writes elsewhere is KindTriggerAfter;
//   - every CHECK that is not this library's, for it may refuse rows;
//   - KindLocalTable: a table beside this one on Citus, which may hold effects;
//   - KindNotPublished: other tables are published, and no publication has all of this one. A server that takes over
//     from the copy has effects without their keys.
//
// It reads pg_catalog only, and takes no lock that a claim could wait for. Safe for concurrent use.
func Verify(ctx context.Context, db Querier, all ...Table) error {
	problems, err := tables.Verify(ctx, pg.FromPgx(db), below(all))
	if err := verified(problems, err); err != nil {
		return fmt.Errorf("dedup: verify: %w", err)
	}
	return nil
}

// verified returns err, or a *VerifyError where there are problems.
func verified(problems []schema.Problem, err error) error {
	if err != nil || len(problems) == 0 {
		return err
	}
	e := &VerifyError{}
	for _, p := range problems {
		one := Problem{Table: p.Table, Message: p.Message, Fix: p.Fix}
		if err := one.Kind.UnmarshalText([]byte(p.Kind)); err != nil {
			return err
		}
		e.Problems = append(e.Problems, one)
	}
	return e
}
