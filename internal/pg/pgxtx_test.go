package pg

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// A transaction that was to be failed can never be committed afterwards: the server has failed it, or its connection is
// closed, or it is over.
func TestFailUnit(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		answer  reply // to the statement that is to fail
		before  func(t *testing.T, tx pgx.Tx)
		ctx     context.Context
		err     error
		sent    bool
		closed  bool
		ignored bool // the state afterwards is not this transaction's
	}{
		"the server fails it":            {answer: reply{"3B001", 'E'}, sent: true},
		"the context has ended":          {answer: reply{"3B001", 'E'}, ctx: ended, sent: true},
		"the server does as it was told": {answer: reply{"", 'T'}, sent: true, closed: true},
		"the statement is refused":       {answer: reply{"42501", 'T'}, sent: true, closed: true},
		"it has failed before": {answer: reply{"25P02", 'E'}, before: func(t *testing.T, tx pgx.Tx) {
			_, err := tx.Exec(t.Context(), "fails")
			require.Error(t, err)
		}},
		"the server has ended it": {before: func(t *testing.T, tx pgx.Tx) {
			_, err := tx.Exec(t.Context(), "commit")
			require.NoError(t, err)
		}, err: ErrTxEnded, ignored: true},
		"its owner has ended it": {before: func(t *testing.T, tx pgx.Tx) {
			require.NoError(t, tx.Rollback(t.Context()))
		}, err: ErrTxEnded, ignored: true},
		"the connection is lost": {before: func(t *testing.T, tx pgx.Tx) {
			require.NoError(t, tx.Conn().PgConn().Conn().Close())
			_, err := tx.Exec(t.Context(), "anything")
			require.Error(t, err)
		}, err: ErrLost, closed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent := false
			conn := connect(t, states(func(sql string) reply {
				switch sql {
				case failSQL:
					sent = true
					return c.answer
				case "fails":
					return reply{"22012", 'E'}
				}
				return reply{status: 'T'}
			}))
			tx, err := conn.Begin(t.Context())
			require.NoError(t, err)
			if c.before != nil {
				c.before(t, tx)
			}
			ctx := c.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			require.Equal(t, c.err, FromPgxTx(tx).Fail(ctx))
			require.Equal(t, c.sent, sent)
			require.Equal(t, c.closed, conn.IsClosed())
			if !c.closed && !c.ignored {
				require.Equal(t, byte('E'), conn.PgConn().TxStatus())
			}
		})
	}
}

// Check knows a transaction that is over, though its connection is in the next one already.
func TestCheckUnit(t *testing.T) {
	t.Parallel()
	conn := connect(t, states(func(sql string) reply {
		if sql == "fails" {
			return reply{"22012", 'E'}
		}
		return reply{status: 'T'}
	}))
	check := func(tx pgx.Tx) error { return FromPgxTx(tx).Check(t.Context(), 0) }
	first, err := conn.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, check(first))
	require.NoError(t, first.Commit(t.Context()))
	require.Equal(t, ErrTxEnded, check(first))

	second, err := conn.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, check(second))
	require.Equal(t, ErrTxEnded, check(first), "its connection is in a transaction, and not in this one")
	require.Equal(t, ErrTxEnded, FromPgxTx(first).Fail(t.Context()))
	require.NoError(t, check(second), "which nothing has been done to")

	_, err = second.Exec(t.Context(), "fails")
	require.Error(t, err)
	require.Equal(t, ErrTxFailed, check(second))
	require.NoError(t, second.Rollback(t.Context()))

	third, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = third.Exec(t.Context(), "commit")
	require.NoError(t, err)
	require.Equal(t, ErrTxEnded, check(third), "ended by SQL text")
	require.NoError(t, conn.Close(t.Context()))
	require.Error(t, check(third))
}
