package idem_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/conformance"
)

func citusDB(t *testing.T) *pgxpool.Config {
	base := os.Getenv("PGONCE_CITUS_URL")
	if base == "" {
		t.Skip()
	}
	u, err := url.Parse(base)
	require.NoError(t, err)
	port, _ := strconv.Atoi(u.Port())
	name := fmt.Sprintf("c%d", citusN.Add(1))
	ctx := context.Background()
	for i := range 4 {
		u.Host = fmt.Sprintf("127.0.0.1:%d", port+i)
		u.Path = "/postgres"
		c, err := pgx.Connect(ctx, u.String())
		require.NoError(t, err)
		_, err = c.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
		require.NoError(t, err)
		_, err = c.Exec(ctx, "CREATE DATABASE "+name)
		require.NoError(t, err)
		c.Close(ctx)
		u.Path = "/" + name
		c, err = pgx.Connect(ctx, u.String())
		require.NoError(t, err)
		_, err = c.Exec(ctx, "CREATE EXTENSION citus")
		require.NoError(t, err)
		c.Close(ctx)
	}
	u.Host = fmt.Sprintf("127.0.0.1:%d", port)
	c, err := pgx.Connect(ctx, u.String())
	require.NoError(t, err)
	defer c.Close(ctx)
	_, err = c.Exec(ctx, "SELECT citus_set_coordinator_host('127.0.0.1', $1)", port)
	require.NoError(t, err)
	for i := 1; i <= 3; i++ {
		_, err = c.Exec(ctx, "SELECT citus_add_node('127.0.0.1', $1)", port+i)
		require.NoError(t, err)
	}
	cfg, err := pgxpool.ParseConfig(u.String())
	require.NoError(t, err)
	return cfg
}

var citusN atomic.Int64

func TestConformanceOnCitus(t *testing.T) {
	conformance.Run(t, conformance.Door{
		Open: func(t *testing.T) conformance.DB {
			cfg := citusDB(t)
			cfg.MaxConns = 16
			pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			return newDB(pool)
		},
		Spread: `SELECT create_distributed_table('processed_events', 'key', colocate_with => 'none', shard_count => 4);
SELECT create_distributed_table('effects', 'what', colocate_with => 'none', shard_count => 4);
SELECT create_distributed_table('business', 'id', colocate_with => 'none', shard_count => 4);
SELECT create_distributed_table('parent', 'id', shard_count => 4);
SELECT create_distributed_table('child', 'parent', shard_count => 4);
`,
	})
}
