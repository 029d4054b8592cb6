package partition

import (
	"context"
	"fmt"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/internal/schema"
)

// onCitus asks once in a run, and only where there is something to detach.
func (r *run) onCitus(ctx context.Context) (bool, error) {
	if r.citus == nil {
		on, err := schema.OnCitus(ctx, r.conn, r.oid)
		if err != nil {
			return false, fmt.Errorf("ask for Citus: %w", err)
		}
		r.citus = &on
	}
	return *r.citus, nil
}

// detachPlain detaches a partition of a table of Citus, which refuses CONCURRENTLY. It takes ACCESS EXCLUSIVE on the
// table. So it waits for a second at most, on each node, and then lets the claims pass that have come behind it.
func (r *run) detachPlain(ctx context.Context, p part, comment string) error {
	tx, err := r.db.Begin(ctx, schema.Limits()...)
	if err == nil {
		err = tx.Send(ctx, &pg.Stmt{SQL: "ALTER TABLE " + r.t.Name.Quoted() + " DETACH PARTITION " + p.name.Quoted()},
			&pg.Stmt{SQL: comment})
		if err != nil {
			_ = tx.Rollback(ctx)
		} else {
			err = tx.Commit(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("detach %s: %w", p.name, err)
	}
	return nil
}
