package main

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// configs are GORM's ways to send statements.
var configs = map[string]gorm.Config{
	"plain":                           {},
	"prepared":                        {PrepareStmt: true},
	"without transactions of its own": {SkipDefaultTransaction: true},
}

func each(t *testing.T, test func(t *testing.T, c *consumer)) {
	for name, cfg := range configs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.Logger = logger.Discard
			db, err := gorm.Open(postgres.Open(pgtest.DSN(t)), &cfg)
			require.NoError(t, err)
			pool, err := db.DB()
			require.NoError(t, err)
			t.Cleanup(func() { _ = pool.Close() })
			c, err := newConsumer(t.Context(), db)
			require.NoError(t, err)
			test(t, c)
		})
	}
}

func orderCount(t *testing.T, db *gorm.DB) (n int64) {
	t.Helper()
	require.NoError(t, db.Model(&Order{}).Count(&n).Error)
	return n
}

func keyCount(t *testing.T, db *gorm.DB) (n int64) {
	t.Helper()
	require.NoError(t, db.Table("processed_events").Count(&n).Error)
	return n
}

func TestDeliveries(t *testing.T) {
	each(t, func(t *testing.T, c *consumer) {
		for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate, idem.Duplicate} {
			out, err := c.handle(t.Context(), message{"msg_1", "lamp"})
			require.NoError(t, err)
			require.Equal(t, want, out)
		}
		require.EqualValues(t, 1, orderCount(t, c.db))

		// An effect that fails leaves no key, so that it can be delivered again.
		for range 2 {
			_, err := c.handle(t.Context(), message{"msg_2", "sofa"})
			require.ErrorIs(t, err, errSoldOut)
		}
		require.EqualValues(t, 1, keyCount(t, c.db))
	})
}

func TestDeliveriesAtTheSameTime(t *testing.T) {
	each(t, func(t *testing.T, c *consumer) {
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				if _, err := c.handle(t.Context(), message{"msg_1", "lamp"}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, orderCount(t, c.db))
	})
}

// What GORM users do besides: a nested transaction that fails and is swallowed, the Tx of Run as GORM's connection,
// and a call outside of any transaction.
func TestOtherUses(t *testing.T) {
	errFn := errors.New("fn")
	each(t, func(t *testing.T, c *consumer) {
		ctx := t.Context()
		err := c.db.Transaction(func(tx *gorm.DB) error {
			err := tx.Transaction(func(tx *gorm.DB) error {
				_, err := idemsql.Do(ctx, tx.Statement.ConnPool, orders.Key("nested"), func(context.Context, idemsql.Tx) error {
					require.NoError(t, tx.Create(&Order{Item: "lost"}).Error)
					return errFn
				})
				return err
			})
			require.ErrorIs(t, err, errFn)
			return tx.Create(&Order{Item: "kept"}).Error
		})
		require.NoError(t, err)
		require.EqualValues(t, 1, orderCount(t, c.db))
		require.Zero(t, keyCount(t, c.db))

		err = c.db.Transaction(func(tx *gorm.DB) error {
			_, err := idemsql.Do(ctx, tx.Statement.ConnPool, orders.Key("swallows"), func(context.Context, idemsql.Tx) error {
				_ = tx.Exec(`SELECT * FROM no_such_table`).Error
				return nil
			})
			var own *idem.Error
			require.ErrorAs(t, err, &own)
			require.Equal(t, idem.StageFn, own.Stage)
			return nil // so does the caller, and cannot commit
		})
		require.Error(t, err)
		require.Zero(t, keyCount(t, c.db))

		pool, err := c.db.DB()
		require.NoError(t, err)
		for _, want := range []idem.Outcome{idem.Executed, idem.Duplicate} {
			out, err := idemsql.Run(ctx, pool, orders.Key("run"), func(ctx context.Context, tx idemsql.Tx) error {
				own := c.db.Session(&gorm.Session{NewDB: true, Context: ctx})
				own.Statement.ConnPool = tx
				return place(own, message{Item: "lamp"})
			})
			require.NoError(t, err)
			require.Equal(t, want, out)
		}
		require.EqualValues(t, 2, orderCount(t, c.db))

		_, err = idemsql.Do(ctx, c.db.Statement.ConnPool, orders.Key("alone"), func(context.Context, idemsql.Tx) error {
			t.Error("fn was called")
			return nil
		})
		require.Error(t, err)
		require.EqualValues(t, 1, keyCount(t, c.db))
	})
}

// The program itself, with a database of its own.
func TestRun(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, run(t.Context(), "", strings.NewReader(shipped), &out))
	require.Equal(t, `msg_1 executed - acknowledge
msg_2 executed - acknowledge
msg_1 duplicate - acknowledge
msg_3 sold out - to the dead letters
msg_2 duplicate - acknowledge
`, out.String())
}
