package idemsql_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/rig/conformance"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

// The suite on a cluster of a coordinator and three workers, through each driver. idem runs the other ways to spread.
func TestConformanceOnCitus(t *testing.T) {
	pgtest.Cluster(t) // skips the test where there is none
	for i, driver := range pgtest.Matrix(drivers, opener.String, typical...) {
		t.Run(driver.name, func(t *testing.T) {
			conformance.Run(t, conformance.Door{
				Spread: conformance.ByKey, Open: onCluster(driver, 0), Features: features(driver),
				Core: i != 0 && driver.name != "pq",
			})
		})
	}
	if !pgtest.Full() {
		return // the same statements, on other nodes
	}
	pq := drivers[slices.IndexFunc(drivers, func(d opener) bool { return d.name == "pq" })]
	t.Run("worker", func(t *testing.T) {
		conformance.Run(t, conformance.Door{
			Spread: conformance.ByKey, OneTable: true, Open: onCluster(pq, 1), Features: features(pq),
		})
	})
	t.Run("weekly", func(t *testing.T) {
		conformance.Run(t, conformance.Door{
			Spread: conformance.Colocated, Layout: dedup.Weekly, Open: onCluster(pq, 0), Features: features(pq),
		})
	})
}

func features(driver opener) conformance.Features {
	pq := strings.HasPrefix(driver.name, "pq")
	return conformance.Features{
		FnCannotEnd: true, AsksServer: true, EndUnknown: pq, BusyUnnamed: pq, NoApply: pq, OneConn: true,
		BusySticks: strings.HasPrefix(driver.name, "stdlib"),
	}
}

// onCluster opens databases of the cluster through one of its nodes.
func onCluster(driver opener, node int) func(t *testing.T) conformance.DB {
	return func(t *testing.T) conformance.DB {
		nodes := pgtest.Cluster(t)
		open := func(dsn string) conformance.DB {
			db := driver.open(t, dsn, nil)
			db.SetMaxOpenConns(16)
			db.SetMaxIdleConns(16)
			t.Cleanup(func() { closes(t, db) })
			return newDB(db)
		}
		if node == 0 {
			return open(nodes[0])
		}
		return conformance.OnWorker(open(nodes[node]), open(nodes[0]))
	}
}
