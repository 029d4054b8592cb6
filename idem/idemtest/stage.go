package idemtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// stage is a database in which rounds are run, one after the other.
type stage struct {
	srv      *server
	cat      *catalog
	original string // the copy that holds the state before the first delivery; nobody is connected to it
	name     string
	pool     *pgxpool.Pool // the kit's own
	clean    map[*userTable]string
	marks    string // the sequences
	slow     bool   // rows cannot be put back here, the database has to be copied again
}

// saved is the name of the copy of a table, in the original and what is copied from it.
func saved(t *userTable) string { return fmt.Sprintf("%s.t%d", ownSchema, t.oid) }

// save keeps a copy of every table in the original, so that rounds can begin from it without copying the database.
func save(ctx context.Context, pool *pgxpool.Pool, cat *catalog) error {
	b := &pgx.Batch{}
	b.Queue(`CREATE SCHEMA ` + ownSchema)
	for _, t := range cat.tables {
		b.Queue(`CREATE TABLE ` + saved(t) + ` AS TABLE ` + t.sql())
	}
	b.Queue(`CREATE SEQUENCE ` + ownSchema + `.writes`)
	b.Queue(failFunction)
	return pool.SendBatch(ctx, b).Close()
}

// newStage copies the original.
func newStage(ctx context.Context, srv *server, cat *catalog, original string) (*stage, error) {
	st := &stage{srv: srv, cat: cat, original: original}
	return st, st.renew(ctx)
}

// renew gives the stage a new database, and drops the one it had.
func (st *stage) renew(ctx context.Context) (err error) {
	if st.pool != nil {
		st.pool.Close()
		if err := st.srv.drop(ctx, st.name); err != nil {
			return err
		}
	}
	if st.name, err = st.srv.clone(ctx, st.original); err != nil {
		return err
	}
	if st.pool, err = st.srv.pool(ctx, st.name, 4); err != nil {
		return err
	}
	if st.clean, err = st.prints(ctx); err != nil {
		return err
	}
	st.marks, err = st.sequences(ctx)
	return err
}

// prints returns a fingerprint of every table, with all columns.
func (st *stage) prints(ctx context.Context) (map[*userTable]string, error) {
	all := map[*userTable]string{}
	b := &pgx.Batch{}
	for _, t := range st.cat.tables {
		b.Queue(`SELECT concat(count(*), ' ', sum(hashtextextended(r::text, 0))) FROM ` + t.sql() +
			` r`).QueryRow(func(row pgx.Row) error {
			var text string
			err := row.Scan(&text)
			all[t] = text
			return err
		})
	}
	return all, st.pool.SendBatch(ctx, b).Close()
}

// sequences returns the statement that sets the sequences to where they are.
func (st *stage) sequences(ctx context.Context) (string, error) {
	var sets []string
	b := &pgx.Batch{}
	for _, name := range st.cat.sequences {
		b.Queue(`SELECT last_value, is_called FROM ` + name).QueryRow(func(row pgx.Row) error {
			var last int64
			var called bool
			if err := row.Scan(&last, &called); err != nil {
				return err
			}
			sets = append(sets, fmt.Sprintf("setval('%s', %d, %t)", strings.ReplaceAll(name, "'", "''"), last, called))
			return nil
		})
	}
	if b.Len() == 0 {
		return "", nil
	}
	err := st.pool.SendBatch(ctx, b).Close()
	return `SELECT ` + strings.Join(sets, ", "), err
}

// reset takes the stage back to the state before the first delivery. Putting rows back is only a shortcut, and its
// result is checked: where it does not work (a right that is missing, a trigger, a lock), the database is copied
// again.
func (st *stage) reset(ctx context.Context) error {
	if err := st.settle(ctx); err != nil {
		return st.renew(ctx)
	}
	now, err := st.prints(ctx)
	if err != nil {
		return err
	}
	var changed []*userTable
	for _, t := range st.cat.tables {
		if now[t] != st.clean[t] {
			changed = append(changed, t)
		}
	}
	if st.slow && len(changed) > 0 || st.putBack(ctx, changed) != nil {
		st.slow = true
		return st.renew(ctx)
	}
	return nil
}

func (st *stage) putBack(ctx context.Context, changed []*userTable) error {
	err := pgx.BeginFunc(ctx, st.pool, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(`SET LOCAL lock_timeout = '2s'`)
		if len(changed) > 0 {
			b.Queue(`SET LOCAL session_replication_role = replica`) // no foreign keys, no triggers
		}
		for _, t := range changed {
			b.Queue(`DELETE FROM ` + t.sql())
			list := t.columnList(written)
			b.Queue(`INSERT INTO ` + t.sql() + ` (` + list + `) OVERRIDING SYSTEM VALUE SELECT ` + list + ` FROM ` + saved(t))
		}
		if st.marks != "" {
			b.Queue(st.marks)
		}
		b.Queue(`SELECT setval('` + ownSchema + `.writes', 1, false)`)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return err
	}
	now, err := st.prints(ctx)
	for _, t := range changed {
		if err == nil && now[t] != st.clean[t] {
			err = fmt.Errorf("the table %v could not be put back", t)
		}
	}
	return err
}

const busySessions = `
SELECT count(*) FILTER (WHERE state <> 'idle' AND state NOT LIKE 'idle in transaction%'), count(*) FILTER (WHERE state LIKE 'idle in transaction%')
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'`

// errOpen says that a session stays in a transaction.
var errOpen = errors.New("a transaction stays open")

// settle waits until no session works any more: what a cut connection left at the server, and what a handler does
// behind its caller's back.
func (st *stage) settle(ctx context.Context) error {
	deadline := time.Now().Add(5 * time.Second)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		var busy, open int
		if err := st.pool.QueryRow(ctx, busySessions).Scan(&busy, &open); err != nil {
			return err
		}
		if busy+open == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return errOpen
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// terminate ends a server session and waits until it has gone.
func (st *stage) terminate(ctx context.Context, pid uint32) error {
	_, err := st.pool.Exec(ctx, `SELECT pg_terminate_backend($1::integer, 5000)`, int32(pid)) //nolint:gosec // a process id
	return err
}

// failFunction raises an error in the write statement of the given number, counted by a sequence: that counts on when
// the transaction rolls back. It has the rights of the kit, whatever role the handler changes to.
const failFunction = `
CREATE FUNCTION ` + ownSchema + `.fail() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	IF nextval('` + ownSchema + `.writes') = TG_ARGV[0]::bigint THEN
		RAISE EXCEPTION 'an error that idemtest makes' USING ERRCODE = TG_ARGV[1], CONSTRAINT = '` + otherConstraint + `';
	END IF;
	RETURN NULL;
END $$`

// otherConstraint is the name that no constraint of the user's has.
const otherConstraint = "idemtest_another_constraint"

// armFailure has the n-th write statement from now on fail with the SQLSTATE code.
func (st *stage) armFailure(ctx context.Context, n int, code string) error {
	b := &pgx.Batch{}
	b.Queue(`SELECT setval('` + ownSchema + `.writes', 1, false)`)
	for _, t := range st.cat.tables {
		b.Queue(fmt.Sprintf(`CREATE TRIGGER idemtest_fail BEFORE INSERT OR UPDATE OR DELETE ON %s
			FOR EACH STATEMENT EXECUTE FUNCTION %s.fail(%d, '%s')`, t.sql(), ownSchema, n, code))
	}
	return st.pool.SendBatch(ctx, b).Close()
}

// disarm removes the triggers, and says how many write statements there were.
func (st *stage) disarm(ctx context.Context) (writes int, err error) {
	b := &pgx.Batch{}
	for _, t := range st.cat.tables {
		b.Queue(`DROP TRIGGER IF EXISTS idemtest_fail ON ` + t.sql())
	}
	b.Queue(`SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM ` + ownSchema +
		`.writes`).QueryRow(func(row pgx.Row) error {
		return row.Scan(&writes)
	})
	return writes, st.pool.SendBatch(ctx, b).Close()
}
