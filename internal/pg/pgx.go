package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// Pgx is what the adapter needs of pgx: a Tx, Conn, Pool, or a wrapper of one.
//
// Everything goes as a batch, a single statement too: outside a transaction, behind a pooler in transaction mode, the
// Parse and the Execute of a lone Query may reach two servers (26000 in describe_exec mode).
type Pgx interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// FromPgx adapts a pgx connection, pool or transaction.
func FromPgx(q Pgx) Conn { return pgxConn{q} }

type pgxConn struct{ q Pgx }

func (c pgxConn) Send(ctx context.Context, stmts ...*Stmt) error {
	b := &pgx.Batch{}
	queue(b, stmts...)
	return WithoutDetail(c.q.SendBatch(ctx, b).Close())
}

// queue adds stmts to b; their Rows, Done and Dest are set when the results are read.
func queue(b *pgx.Batch, stmts ...*Stmt) {
	for _, s := range stmts {
		qq := b.Queue(s.SQL, s.Args...)
		if s.Dest == nil {
			qq.Exec(func(tag pgconn.CommandTag) error {
				s.Rows, s.Done = tag.RowsAffected(), true
				return nil
			})
			continue
		}
		qq.Query(s.read)
	}
}

// read counts rows, and scans the first.
func (s *Stmt) read(rows pgx.Rows) error {
	for rows.Next() {
		if s.Rows++; s.Rows > 1 {
			continue
		}
		if err := Scanner(rows)(s.Dest...); err != nil {
			return err
		}
	}
	s.Done = rows.Err() == nil
	return rows.Err()
}

func (c pgxConn) Query(
	ctx context.Context, sql string, args []any, row func(scan func(dest ...any) error) error,
) error {
	b := &pgx.Batch{}
	queueQuery(b, sql, args, row)
	return WithoutDetail(c.q.SendBatch(ctx, b).Close())
}

// queueQuery adds a statement to b; row is called when the results are read.
func queueQuery(b *pgx.Batch, sql string, args []any, row func(scan func(dest ...any) error) error) {
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if err := row(Scanner(rows)); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// Scanner returns the Scan of rows. A destination with a method UseTypes is told before what types the connection
// knows.
func Scanner(rows pgx.Rows) func(dest ...any) error {
	return func(dest ...any) error {
		if conn := rows.Conn(); conn != nil {
			for _, d := range dest {
				if d, ok := d.(interface{ UseTypes(m *pgtype.Map) }); ok {
					d.UseTypes(conn.TypeMap())
				}
			}
		}
		return rows.Scan(dest...)
	}
}
