package pgtest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	dsns := Cluster(t)
	require.Len(t, dsns, 1+clusterWorkers)
	require.NoError(t, onDatabase(context.Background(), dsns[0], "CREATE TABLE t (id int)",
		"SELECT create_distributed_table('t', 'id')", "INSERT INTO t (id) SELECT generate_series(1, 100)"))
	require.NoError(t, onDatabase(context.Background(), dsns[1], "INSERT INTO t (id) VALUES (101)"))
}
