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
// ask. Call it on the connections that claim, when the program starts or in its tests: it answers for the current role
// and search path.
//
// It asks of the table:
//
//   - is there a unique index on exactly the key's columns: valid, ready, immediate, without WHERE and expressions;
//   - can none of the columns be NULL; is their collation "C"; are the defaults those that a claim relies on;
//   - can no trigger, rule, foreign key, CHECK, EXCLUDE constraint, inheritance or row security refuse, change, keep,
//     delete or hide a row;
//   - can logical replication carry its updates and deletes, where they are published;
//   - is it logged, and the one that the search path means; has the role the rights to claim;
//   - does its Retention cover what its sender resends;
//   - do the partitions of [Hash] take every key, and those of [Weekly] every week of the window and four to come; is
//     the week a function of the key, by validated CHECKs; is no partition a default, half detached, not logged, or
//     with an invalid index or a trigger of its own;
//   - on Citus: is it of one node beside tables in shards, or the other way round (KindLocalTable: accept it if that
//     table holds no effects); is it a reference table, replicated by statements, in a group with another collation, or
//     spread otherwise than Table.Spread says.
//
// Of the session it asks whether commits survive a crash (synchronous_commit), and whether it stores keys as every
// other session does (client_encoding); of the server, whether fsync and full_page_writes are on. A server for tests
// that has them off sets pgonce.throwaway = on.
//
// What the catalog cannot tell is reported; accept it with [VerifyError.Except]:
//
//   - every enabled trigger on INSERT, UPDATE or DELETE: one that only writes elsewhere is KindTriggerAfter;
//   - every CHECK that is not this library's, for it may refuse rows;
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
