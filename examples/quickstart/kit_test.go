package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemtest"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// samples are events of the file that comes with the program: the events of one subscription, which have an order, and
// one of each other kind.
func samples(t *testing.T) (all []delivery) {
	t.Helper()
	seen := map[string]bool{}
	for d, err := range read(strings.NewReader(shipped)) {
		require.NoError(t, err)
		if kind := d.Provider; !seen[d.ID] && (d.Object == "sub_zJoDX9YVFx" || d.Provider != "stripe" && !seen[kind]) {
			seen[d.ID], seen[kind] = true, true
			all = append(all, d)
		}
	}
	require.Greater(t, len(all), 3)
	return all[:4] // 24 orders; of five there are 120
}

// The handler under everything that a broker does. See package idemtest.
func TestHandlerBroken(t *testing.T) {
	k := idemtest.Kit[delivery]{
		Setup: func(ctx context.Context, pool *pgxpool.Pool) error {
			if err := dedup.Migrate(ctx, pool); err != nil {
				return err
			}
			_, err := pool.Exec(ctx, schema)
			return err
		},
		Handler: func(db *idemtest.DB) func(context.Context, delivery) error {
			pool := db.Pool()
			return func(ctx context.Context, d delivery) error {
				_, err := handle(ctx, pool, d)
				return err
			}
		},
		Deliveries: samples(t),
		Keys:       []func(delivery) idem.Key{delivery.key},
	}
	if !idemtest.Child() {
		k.DSN = pgtest.DSN(t)
	}
	begun := time.Now()
	k.All(t)
	t.Logf("a full run took %v", time.Since(begun).Round(time.Millisecond))
	require.Less(t, time.Since(begun), 3*time.Minute,
		"it is meant to take less than 20 s on a machine that does nothing else")
}
