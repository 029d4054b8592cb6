package idemtest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/dedup/inbox"
	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/pgerr"
)

// Backed looks for the constraint behind each key. It proves the tables in Dedup with [dedup.Verify], inboxes with
// [inbox.Verify], and the constraints in Constraints by the same rules: unique, valid, immediate, not partial, on
// columns that cannot be NULL. Then it makes each delivery. It fails unless that wrote a row which one of the
// constraints refuses a second time: it tries. A constraint whose values are new for each delivery (an identity, a
// default like gen_random_uuid(), a time) fails too.
func (k Kit[D]) Backed(t TB) {
	t.Helper()
	run(t, k, part[D]{"Backed", (*lab[D]).backed})
}

func (l *lab[D]) backed() error {
	st, b, err := l.stage()
	if err != nil {
		return err
	}
	guards, err := l.guards(st)
	if err != nil {
		return err
	}
	if err := l.madeAnew(st, b, guards); err != nil {
		return err
	}
	a, err := l.act(st, newWire(nil))
	if err != nil {
		return err
	}
	defer a.close()
	for i, d := range l.Deliveries {
		before, err := st.keyRows(l.ctx, guards)
		if err != nil {
			return err
		}
		if err := l.redeliver(a, d); err != nil {
			return err
		}
		guarded := 0
		for _, g := range guards {
			n, err := st.refuses(l.ctx, g, before[g.table])
			if err != nil {
				return &finding{sentence: fmt.Sprintf("%s: %v", l.name(i), err), database: st.name}
			}
			guarded += n
		}
		if guarded == 0 {
			return &finding{
				sentence: fmt.Sprintf("%s wrote no row that a unique constraint keeps from being written again: no constraint "+
					"backs its key", l.name(i)),
				database: st.name,
			}
		}
	}
	return nil
}

// madeAnew finds a constraint whose values come from elsewhere than the delivery: they differ between two runs that
// nothing disturbed. A second delivery would have other ones.
func (l *lab[D]) madeAnew(st *stage, b *baseline, guards []guard) error {
	for i := range l.Deliveries {
		for _, g := range guards {
			fresh, same := 0, 0
			for v := range b.keys[i] {
				if v.table == g.table && v.constraint == g.constraint {
					fresh++
					same += min(b.again[i][v], 1)
				}
			}
			if fresh == 0 || same > 0 {
				continue
			}
			why := fmt.Sprintf("the constraint %s backs no key: its values in %v are made anew for each delivery "+
				"(an identity, a default, a trigger, a time)", g.constraint, g.table)
			if g.table.dedup {
				why = keyOf
			}
			return &finding{sentence: fmt.Sprintf("%s: %s", l.name(i), why), database: st.name}
		}
	}
	return nil
}

// guard is a table with a constraint that is to back keys.
type guard struct {
	table      *userTable
	constraint string // "" for a dedup table or an inbox: any unique constraint of it, for Verify has looked
	columns    string // of the constraint, quoted
}

const findConstraint = `
SELECT i.indrelid::bigint, i.indisunique AND i.indisvalid AND i.indisready, i.indimmediate, i.indpred IS NOT NULL, i.indexprs IS NOT NULL,
	EXISTS (
		SELECT FROM pg_attribute a
		WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey::smallint[]) AND NOT a.attnotnull),
	(SELECT coalesce(string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum), '') FROM pg_attribute a
		WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::smallint[])[0:i.indnkeyatts - 1]))
FROM pg_index i
JOIN pg_class c ON c.oid = i.indexrelid
WHERE c.relname = $1::text AND NOT c.relispartition`

// guards finds and proves what is to back the keys.
func (l *lab[D]) guards(st *stage) (all []guard, err error) {
	for _, t := range l.cat.tables {
		var columns string
		switch name := pg.Quote(t.schema) + "." + pg.Quote(t.name); {
		case t.dedup:
			err, columns = dedup.Verify(l.ctx, st.pool, dedup.Table{Name: name}), t.columnList(isKey)
		case t.inbox:
			err, columns = inbox.Verify(l.ctx, st.pool, inbox.Table{Name: name}), "message_id, operation, source"
		default:
			continue
		}
		var bad *dedup.VerifyError
		switch {
		case errors.As(err, &bad):
			return nil, &finding{sentence: fmt.Sprintf("the table %v does not back its keys: %v", t, bad), database: st.name}
		case err != nil:
			return nil, err
		}
		all = append(all, guard{table: t, columns: columns})
	}
	for _, name := range l.Constraints {
		g, problem, err := st.constraint(l.ctx, name)
		if err != nil {
			return nil, err
		}
		if problem != "" {
			return nil, &finding{sentence: fmt.Sprintf("the constraint %s backs no key: %s", name, problem), database: st.name}
		}
		all = append(all, g)
	}
	if len(all) == 0 {
		return nil, &finding{sentence: "no table of package dedup is there, and no constraint is named in Kit.Constraints: " +
			"nothing backs the keys", database: st.name}
	}
	return all, nil
}

func (st *stage) constraint(ctx context.Context, name string) (g guard, problem string, err error) {
	var oid int64
	var unique, immediate, partial, expressions, nullable bool
	var columns string
	err = st.pool.QueryRow(ctx, findConstraint, name).Scan(&oid, &unique, &immediate, &partial, &expressions, &nullable,
		&columns)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return g, "it does not exist, or has no index", nil
	case err != nil:
		return g, "", err
	case !unique:
		return g, "its index is not unique, or not valid", nil
	case !immediate:
		return g, "it is deferrable, so that two rows can be there until COMMIT", nil
	case partial:
		return g, "its index is partial, and rows outside of the WHERE are not unique", nil
	case expressions:
		return g, "its index is on an expression, which can be the same for two keys", nil
	case nullable:
		return g, "a column of it can be NULL, and NULLs are not equal", nil
	}
	for _, t := range st.cat.tables {
		if t.oid == oid {
			return guard{t, name, columns}, "", nil
		}
	}
	return g, "its table is not one of the user's", nil
}

// keyRows returns where the rows of the guards' tables are.
func (st *stage) keyRows(ctx context.Context, guards []guard) (map[*userTable][]string, error) {
	all := map[*userTable][]string{}
	for _, g := range guards {
		rows, err := st.pool.Query(ctx, `SELECT concat(tableoid, ctid) FROM `+g.table.sql())
		if err != nil {
			return nil, err
		}
		if all[g.table], err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// refuses tries to write again each row that is not among the old ones, and returns how many there are.
func (st *stage) refuses(ctx context.Context, g guard, old []string) (n int, err error) {
	if old == nil {
		old = []string{}
	}
	rows, err := st.pool.Query(ctx,
		`SELECT concat(tableoid, ctid) FROM `+g.table.sql()+` WHERE concat(tableoid, ctid) <> ALL ($1::text[])`, old)
	if err != nil {
		return 0, err
	}
	fresh, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return 0, err
	}
	list := g.table.columnList(written)
	for _, at := range fresh {
		var inserted error
		err := pgx.BeginFunc(ctx, st.pool, func(tx pgx.Tx) error {
			_, inserted = tx.Exec(ctx, `INSERT INTO `+g.table.sql()+` (`+list+`) OVERRIDING SYSTEM VALUE SELECT `+list+
				` FROM `+g.table.sql()+` WHERE concat(tableoid, ctid) = $1::text`, at)
			return errUndo
		})
		if err != nil && !errors.Is(err, errUndo) {
			return 0, err
		}
		switch {
		case inserted == nil:
			return 0, fmt.Errorf("its row in %v could be written a second time", g.table)
		case g.constraint != "" && !pgerr.Duplicate(inserted, g.constraint) || !pgerr.Is(inserted, "23505"):
			return 0, fmt.Errorf("its row in %v, written a second time, was refused for another reason than %s: %w",
				g.table, strings.TrimSpace(g.constraint+" (23505)"), inserted)
		}
	}
	return len(fresh), nil
}

// errUndo rolls back.
var errUndo = errors.New("only a try")
