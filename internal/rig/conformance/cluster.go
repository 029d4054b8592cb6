package conformance

import (
	"context"
	"regexp"
)

// Spread of a [Door]: how the tables of the suite lie on a cluster.
const (
	// ByKey: keys by themselves, and effects by theirs. A key and its effect commit on two nodes.
	ByKey = `
SELECT create_distributed_table('processed_events', 'key', colocate_with => 'none', shard_count => 4);
SELECT create_distributed_table('effects', 'what', colocate_with => 'none', shard_count => 4);
` + business

	// Colocated: effects lie where their keys do, as far as the two are equal.
	Colocated = `
SELECT create_distributed_table('processed_events', 'key', colocate_with => 'none', shard_count => 4);
ALTER TABLE effects ALTER COLUMN what TYPE text COLLATE "C";
SELECT create_distributed_table('effects', 'what', colocate_with => 'processed_events');
` + business

	business = `
SELECT create_distributed_table('business', 'id', colocate_with => 'none', shard_count => 4);
SELECT create_distributed_table('parent', 'id', shard_count => 4);
SELECT create_distributed_table('child', 'parent', shard_count => 4);
`
)

// OnWorker is a database that is asked through a worker of a cluster. The coordinator makes the tables.
func OnWorker(worker, coordinator DB) DB { return onWorker{worker, coordinator} }

type onWorker struct {
	DB
	coordinator DB
}

func (d onWorker) Exec(ctx context.Context, sql string, args ...any) error {
	db := d.DB
	if makes.MatchString(sql) {
		db = d.coordinator
	}
	return db.Exec(ctx, sql, args...)
}

var makes = regexp.MustCompile(`(?m)^\s*(CREATE|ALTER|DROP|DO|COMMENT|SELECT create_)`)
