package idem_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/conformance"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// The suite on a cluster of a coordinator and three workers: keys are spread by themselves, and effects by theirs, so
// that a transaction commits on two nodes. Asked through the coordinator, and through a worker.
func TestConformanceOnCitus(t *testing.T) {
	pgtest.Cluster(t) // skips the test where there is none
	t.Run("coordinator", func(t *testing.T) {
		conformance.Run(t, conformance.Door{Spread: conformance.ByKey, Open: onCluster(0)})
	})
	if !pgtest.Full() {
		return // the same statements, on other nodes
	}
	t.Run("worker", func(t *testing.T) {
		conformance.Run(t, conformance.Door{Spread: conformance.ByKey, OneTable: true, Open: onCluster(1)})
	})
	t.Run("colocated", func(t *testing.T) {
		conformance.Run(t, conformance.Door{Spread: conformance.Colocated, Open: onCluster(0)})
	})
	t.Run("weekly", func(t *testing.T) {
		conformance.Run(t, conformance.Door{Spread: conformance.ByKey, Layout: dedup.Weekly, Open: onCluster(0)})
	})
}

// onCluster opens databases of the cluster through one of its nodes.
func onCluster(node int) func(t *testing.T) conformance.DB {
	return func(t *testing.T) conformance.DB {
		nodes := pgtest.Cluster(t)
		db := openNode(t, nodes[node])
		if node == 0 {
			return db
		}
		return conformance.OnWorker(db, openNode(t, nodes[0]))
	}
}

func openNode(t *testing.T, dsn string) conformance.DB {
	cfg, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	cfg.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return newDB(pool)
}
