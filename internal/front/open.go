package front

import (
	"context"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/claim"
	"github.com/pgonce/pgonce/internal/pg"
)

// Open is a key that is reserved or unfinished.
type Open struct {
	Facts  Facts
	Record claim.Record
}

// Open lists them; an empty source or operation stands for all.
func (s Settings) Open(ctx context.Context, conn pg.Conn, source, operation string, limit int) ([]Open, error) {
	sql, err := s.statements()
	if err != nil {
		return nil, err
	}
	found, err := claim.OpenKeys(ctx, conn, sql, source, operation, limit)
	if err != nil {
		return nil, err
	}
	all := make([]Open, len(found))
	for i, o := range found {
		f := Named(Name{o.Source, o.Operation, o.Key})
		if _, inside := MillisOf(o.Key); s.Table.Layout == dedup.Weekly && !inside {
			f = withMicro(f, o.At)
		}
		all[i] = Open{f, o.Record}
	}
	return all, nil
}
