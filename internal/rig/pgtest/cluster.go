package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgonce/pgonce/internal/rig/pgserver"
)

// clusterWorkers is how many workers a cluster has, besides its coordinator.
const clusterWorkers = 3

// Cluster returns the connection strings of an empty database that a Citus cluster serves: of its coordinator first,
// then of each of its three workers. The cluster is the test process's own, with a server for each node. The first test
// that asks starts it. PGONCE_CITUS_BIN is the folder of server binaries that have the extension. Without it those of
// package pgserver are tried, and the test is skipped where they have none.
func Cluster(t testing.TB) []string {
	t.Helper()
	nodes, err := cluster.get()
	switch {
	case err != nil && os.Getenv("PGONCE_CITUS_BIN") == "":
		t.Skipf("pgtest: the server does not offer the extension citus: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	name := newName()
	// One after the other: a node that joins is told of roles, which are the same ones for all databases.
	cluster.spreading.Lock()
	dsns, err := spread(ctx, nodes, name)
	cluster.spreading.Unlock()
	if err != nil {
		t.Fatalf("pgtest: make a database on the cluster: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
		defer cancel()
		for _, node := range nodes {
			if err := onDatabase(ctx, node, `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
				t.Errorf("pgtest: drop a database on the cluster: %v", err)
			}
		}
	})
	return dsns
}

// OwnCluster is a cluster of a test's own, whose servers it may kill: the coordinator first.
type OwnCluster struct {
	DSNs []string // as of [Cluster]
	n    *nodes
}

// NewOwnCluster starts a cluster with settings, and stops it when the test ends. It skips the test as [Cluster] does.
func NewOwnCluster(t testing.TB, settings map[string]string) *OwnCluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	c := &OwnCluster{n: &nodes{}}
	err := c.n.start(ctx, settings)
	t.Cleanup(func() { _ = c.n.stop() })
	if err != nil && os.Getenv("PGONCE_CITUS_BIN") == "" {
		t.Skipf("pgtest: the server does not offer the extension citus: %v", err)
	}
	if err == nil {
		c.DSNs, err = spread(ctx, c.n.dsns, newName())
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Kill ends a node by SIGKILL, and Restart starts it again on the same data.
func (c *OwnCluster) Kill(node int) error { return c.n.servers[node].Kill() }

// Restart starts a node that was killed.
func (c *OwnCluster) Restart(ctx context.Context, node int) error {
	return c.n.servers[node].Restart(ctx)
}

// cluster is that of this process; for why it is package state see [shared].
var cluster nodes

// nodes starts the servers of a cluster when they are asked for the first time.
type nodes struct {
	once    sync.Once
	servers []*pgserver.Server
	dsns    []string // on the database postgres of each
	err     error

	spreading sync.Mutex
}

func (n *nodes) get() ([]string, error) {
	n.once.Do(func() { n.err = n.start(context.Background(), nil) })
	return n.dsns, n.err
}

func (n *nodes) start(ctx context.Context, more map[string]string) error {
	settings := pgserver.FastAndUnsafe()
	maps.Copy(settings, map[string]string{
		"shared_preload_libraries": "citus", "citus.node_conninfo": "sslmode=disable", "citus.shard_count": "4",
		// A daemon of each database looks for deadlocks over nodes and for transactions in doubt.
		"max_worker_processes": "200", "shared_buffers": "32MB",
		// A test that sets synchronous_commit has COMMIT wait behind its end, for a standby that is not there.
		"synchronous_commit": "local", "synchronous_standby_names": "nobody",
	})
	maps.Copy(settings, more)
	var password string
	for range 1 + clusterWorkers {
		s, err := pgserver.Start(ctx, pgserver.Config{BinDir: os.Getenv("PGONCE_CITUS_BIN"), Settings: settings})
		if err != nil {
			return errors.Join(err, n.stop())
		}
		n.servers = append(n.servers, s)
		u, err := url.Parse(s.DSN("postgres"))
		if err != nil {
			return errors.Join(err, n.stop())
		}
		// One password for all: a node must know it before it knows the others.
		if own, _ := u.User.Password(); password == "" {
			password = own
		}
		if err := onDatabase(ctx, u.String(), `ALTER ROLE postgres PASSWORD '`+password+`'`); err != nil {
			return errors.Join(err, n.stop())
		}
		u.User = url.UserPassword(u.User.Username(), password)
		n.dsns = append(n.dsns, u.String())
	}
	return nil
}

// stop ends the servers, of which there may be none.
func (n *nodes) stop() error {
	var err error
	for _, s := range n.servers {
		err = errors.Join(err, s.Stop())
	}
	n.servers = nil
	return err
}

// spread makes a database on each node, and has the first know the others.
func spread(ctx context.Context, nodes []string, name string) ([]string, error) {
	var dsns []string
	var join []string
	for i, node := range nodes {
		u, err := url.Parse(node)
		if err != nil {
			return nil, err
		}
		if err := onDatabase(ctx, node, `CREATE DATABASE `+name+` TEMPLATE template0`); err != nil {
			return nil, err
		}
		port, err := strconv.Atoi(u.Port())
		if err != nil {
			return nil, err
		}
		add := "citus_add_node"
		if i == 0 {
			add = "citus_set_coordinator_host"
		}
		join = append(join, fmt.Sprintf("SELECT %s('127.0.0.1', %d)", add, port))
		password, _ := u.User.Password()
		u.Path = "/" + name
		dsns = append(dsns, u.String())
		err = onDatabase(ctx, u.String(), `CREATE EXTENSION citus`,
			`INSERT INTO pg_dist_authinfo (nodeid, rolename, authinfo) VALUES (0, 'postgres', 'password=`+password+`')`)
		if err != nil {
			return nil, err
		}
	}
	return dsns, onDatabase(ctx, dsns[0], join...)
}

// onDatabase runs statements on a connection of their own.
func onDatabase(ctx context.Context, dsn string, stmts ...string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, sql := range stmts {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}
