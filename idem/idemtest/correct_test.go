package idemtest_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemtest"
)

// manySchema has the kinds of tables and columns that a comparison of rows could stumble over.
const manySchema = `
CREATE SCHEMA other;
CREATE SEQUENCE downwards INCREMENT -1;
CREATE SEQUENCE short MAXVALUE 500 CYCLE;
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, code uuid NOT NULL DEFAULT gen_random_uuid(),
	down int DEFAULT nextval('downwards'), few int DEFAULT nextval('short'), ref text NOT NULL, twice text GENERATED ALWAYS AS (ref || ref) STORED,
	now timestamptz NOT NULL, clock timestamptz NOT NULL, seconds bigint NOT NULL, raw json NOT NULL, "a<b>&""c" text NOT NULL);
CREATE TABLE other.lines (order_id bigint NOT NULL REFERENCES public.orders DEFERRABLE INITIALLY DEFERRED, tags text[], price float8, doc jsonb, "full" bool);
CREATE TABLE bare (x float8, y numeric, z bytea);
CREATE TABLE parts (ref text, month date NOT NULL, PRIMARY KEY (ref, month)) PARTITION BY RANGE (month);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM ('2026-01-01') TO ('2026-07-01');
CREATE TABLE parts_2 PARTITION OF parts DEFAULT;
CREATE TABLE outbox (id bigserial PRIMARY KEY, topic text, body jsonb, at timestamptz DEFAULT now());
CREATE TABLE audit (at timestamptz, pid int, tx text, what jsonb, kind text);
CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	INSERT INTO audit VALUES (clock_timestamp(), pg_backend_pid(), pg_current_xact_id()::text, to_jsonb(NEW), TG_OP);
	RETURN NEW; END $$;
CREATE TRIGGER audited AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION audited();
CREATE CONSTRAINT TRIGGER audited AFTER INSERT ON other.lines DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION audited()`

// many writes to all of that, as handlers do.
func many(ctx context.Context, tx pgx.Tx, p payment) error {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext($1))`, p.Account); err != nil {
		return err
	}
	var id int64
	err := tx.QueryRow(ctx, `INSERT INTO orders (ref, now, clock, seconds, raw, "a<b>&""c") VALUES ($1, now(), clock_timestamp(), $2, $3::text::json, $1) RETURNING id`,
		p.ID, time.Now().Unix(), " {\"amount\": 1.0,\n \"amount\": 1.00}\n").Scan(&id)
	if err != nil {
		return err
	}
	for _, sql := range []string{
		`INSERT INTO other.lines (order_id, tags, price, doc, "full") VALUES ($2::bigint, ARRAY[$1::text, NULL, 'x"y'], 'NaN', jsonb_build_object('b', $1::text, 'a', '<&>'), true)`,
		`INSERT INTO bare (x, y, z) SELECT 0.1 + 0.2, 1.10, '\x00ff' WHERE $1::text <> '' AND $2::bigint <> 0`,
		`INSERT INTO parts (ref, month) SELECT $1::text, day FROM (VALUES (DATE '2026-02-01'), (DATE '2026-12-01')) AS v (day) WHERE $2::bigint <> 0`,
		`INSERT INTO outbox (topic, body) VALUES ('orders', jsonb_build_object('event', $1::text, 'order', $2::bigint))`,
		`SELECT pg_notify('orders', $1::text || $2::bigint)`,
	} {
		if _, err := tx.Exec(ctx, sql, p.ID, id); err != nil {
			return err
		}
	}
	_, err = tx.Exec(ctx, `CREATE TEMPORARY TABLE IF NOT EXISTS scratch (n int) ON COMMIT DROP`)
	return err
}

func manyKit(t *testing.T, once idem.Once) idemtest.Kit[payment] {
	k := kit(t, onPool(func(pool *pgxpool.Pool) handler {
		return func(ctx context.Context, p payment) error {
			_, err := once.Run(ctx, pool, credits.Key(p.ID),
				func(ctx context.Context, tx pgx.Tx) error { return many(ctx, tx, p) })
			return err
		}
	}))
	k.Setup = func(ctx context.Context, pool *pgxpool.Pool) error {
		if err := setup(ctx, pool); err != nil {
			return err
		}
		_, err := pool.Exec(ctx, manySchema)
		return err
	}
	return k
}

// A handler that is right passes, whatever it writes.
func TestCorrect(t *testing.T) {
	t.Parallel()
	k := manyKit(t, idem.Once{TxOptions: pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, Tries: 20})
	k.DoubleSubmit(t)
	k.Reorder(t)
}

// A service that listens for as long as it runs has leaked nothing.
func TestListener(t *testing.T) {
	t.Parallel()
	k := kit(t, onPool(func(pool *pgxpool.Pool) handler {
		conn, err := pool.Acquire(context.Background())
		if err != nil {
			panic(err)
		}
		if _, err := conn.Exec(context.Background(), `LISTEN payments`); err != nil {
			panic(err)
		}
		go func() {
			defer conn.Release()
			for {
				if _, err := conn.Conn().WaitForNotification(context.Background()); err != nil {
					return
				}
			}
		}()
		return soundOn(pool)
	}))
	k.DoubleSubmit(t)
}

// A column that was the same in two runs by chance is not blamed on the key.
func TestSameByChance(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	k := kit(t, onPool(func(pool *pgxpool.Pool) handler {
		return func(ctx context.Context, p payment) error {
			p.Amount = 100 + int(calls.Add(1))/5 // two events, twice: 100, and then another one
			return soundOn(pool)(ctx, p)
		}
	}))
	message := failure(t, func(tb idemtest.TB) { k.DoubleSubmit(tb) })
	require.Contains(t, message, "made for the first time: ")
	require.Contains(t, message, "Kit.Ignore")
}

// acksInBackground acknowledges, and does the work afterwards.
func acksInBackground(pool *pgxpool.Pool) handler {
	return func(_ context.Context, p payment) error {
		go func() {
			for range 100 {
				if soundOn(pool)(context.Background(), p) == nil {
					return
				}
			}
		}()
		return nil
	}
}

// commitsInBackground acknowledges while COMMIT is under way.
func commitsInBackground(pool *pgxpool.Pool) handler {
	return func(_ context.Context, p payment) error {
		ctx := context.Background()
		tx, err := pool.Begin(ctx)
		if err != nil {
			return err
		}
		if _, err := idem.Do(ctx, tx, credits.Key(p.ID),
			func(ctx context.Context, tx pgx.Tx) error { return credit(ctx, tx, p) }); err != nil {
			_ = tx.Rollback(ctx)
			return err
		}
		go func() {
			if tx.Commit(ctx) != nil {
				_ = acksInBackground(pool)(ctx, p)
			}
		}()
		return nil
	}
}

// acksCanceled takes the end of its context for the end of the work.
func acksCanceled(pool *pgxpool.Pool) handler {
	return func(ctx context.Context, p payment) error {
		err := soundOn(pool)(ctx, p)
		if ctx.Err() != nil {
			return nil // shutting down
		}
		return err
	}
}

// Three ways to acknowledge what is not committed, of which the last one shows only where a context ends.
func TestAcknowledgedTooSoon(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		broken maker
		call   func(idemtest.Kit[payment], idemtest.TB)
		want   string
	}{
		{
			"work in background", acksInBackground, idemtest.Kit[payment].DoubleSubmit,
			"nothing in its way: acknowledged before commit: ",
		},
		{
			"commit in background", commitsInBackground, idemtest.Kit[payment].DoubleSubmit,
			"nothing in its way: acknowledged before commit: ",
		},
		{
			"at shutdown", acksCanceled, idemtest.Kit[payment].Crash,
			"the context ended; the handler acknowledged it all the same: ",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			message := failure(t, func(tb idemtest.TB) { c.call(kit(t, onPool(c.broken)), tb) })
			t.Log(message)
			if !idemtest.Child() {
				require.Contains(t, message, c.want)
			}
		})
	}
}
