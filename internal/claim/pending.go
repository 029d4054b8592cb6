package claim

import (
	"context"

	"github.com/pgonce/pgonce/internal/pg"
)

// Pending is a key that is reserved or unfinished.
type Pending struct {
	Source, Operation, Key string
	Record
	At int64 // of a table of layout Weekly: the key's time
}

// ListPending lists those of a table; an empty source or operation stands for all.
func ListPending(ctx context.Context, conn pg.Conn, sql SQL, source, operation string, limit int) ([]Pending, error) {
	var all []Pending
	err := conn.Query(ctx, sql.text[stmtPending], []any{source, operation, int64(limit)},
		func(scan func(...any) error) error {
			var o Pending
			dest := []any{
				&o.Source, &o.Operation, &o.Key, &o.Attempt, &o.ProcessedAt, &o.AgeMicros, &o.Leased,
				(*hexed)(&o.PayloadHash),
			}
			if sql.weekly {
				dest = append(dest, &o.At)
			}
			err := scan(dest...)
			all = append(all, o)
			return err
		})
	if err != nil {
		return nil, sql.failed(StagePending, err)
	}
	return all, nil
}
