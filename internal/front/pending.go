package front

import (
	"context"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/pg"
)

// PendingKey is a key that is reserved or unfinished.
type PendingKey struct {
	Facts  Facts
	Record claim.Record
}

// Pending lists them; an empty source or operation stands for all.
func (s Settings) Pending(
	ctx context.Context, conn pg.Conn, source, operation string, limit int,
) ([]PendingKey, error) {
	sql, err := s.statements()
	if err != nil {
		return nil, err
	}
	found, err := claim.ListPending(ctx, conn, sql, source, operation, limit)
	if err != nil {
		return nil, err
	}
	all := make([]PendingKey, len(found))
	for i, o := range found {
		f := Named(Name{o.Source, o.Operation, o.Key})
		if _, inside := MillisOf(o.Key); s.Table.Layout == dedup.Weekly && !inside {
			f = withMicro(f, o.At)
		}
		all[i] = PendingKey{f, o.Record}
	}
	return all, nil
}
