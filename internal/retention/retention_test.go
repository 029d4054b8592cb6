package retention

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/pg"
)

// liar is a server whose command tags say nothing of what it has done. Rows that it returns are there.
type liar struct{ pg.OwnTx }

func (l liar) Begin(ctx context.Context, stmts ...*pg.Stmt) (pg.OwnTx, error) {
	return l, l.Send(ctx, stmts...)
}

func (liar) NeedsMark() bool                { return false }
func (liar) Commit(context.Context) error   { return nil }
func (liar) Rollback(context.Context) error { return nil }

func (liar) Send(_ context.Context, stmts ...*pg.Stmt) error {
	for _, s := range stmts {
		s.Done, s.Rows = true, 1
		for _, d := range s.Dest {
			switch d := d.(type) {
			case *bool:
				*d = s.SQL == lockSQL
			case *int64:
				*d = 3
			}
		}
		if s.SQL == render(pg.Name{Table: "t"}).delete {
			s.Rows = 77
			if s.Dest != nil {
				s.Rows = 3
			}
		}
	}
	return nil
}

// What a purge reports are the rows that came back.
func TestRowsAreCounted(t *testing.T) {
	t.Parallel()
	got, err := Purge{Name: pg.Name{Table: "t"}, Batch: 5}.Run(t.Context(), liar{})
	require.NoError(t, err)
	require.Equal(t, Stats{Rows: 3}, got)
}
