package pg

import (
	"context"
	"reflect"

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
	return withoutDetail(c.q.SendBatch(ctx, b).Close())
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
		qq.Query(func(rows pgx.Rows) error {
			for rows.Next() {
				if s.Rows++; s.Rows > 1 {
					continue
				}
				if err := Scanner(rows)(s.Dest...); err != nil {
					return err
				}
			}
			s.Done = rows.Err() == nil
			return nil
		})
	}
}

func (c pgxConn) Query(ctx context.Context, sql string, args []any, row func(scan func(dest ...any) error) error) error {
	b := &pgx.Batch{}
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if err := row(Scanner(rows)); err != nil {
				return err
			}
		}
		return nil
	})
	return withoutDetail(c.q.SendBatch(ctx, b).Close())
}

// Scanner returns the Scan of rows. A destination with a method UseTypes is told before what types the connection knows.
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

// withoutDetail drops the DETAIL of a server's error, which prints the key where a constraint of the table is violated, and
// its CONTEXT, which prints parameters where log_parameter_max_length_on_error says so. It is kept out of reach, not only out of the message: callers log the struct, too.
func withoutDetail(err error) error {
	if pgErr, ok := err.(*pgconn.PgError); ok {
		if pgErr.Detail == "" && pgErr.Where == "" {
			return err
		}
		clean := *pgErr
		clean.Detail, clean.Where = "", ""
		return &clean
	}
	if _, ok := err.(interface{ SQLState() string }); !ok {
		return err
	}
	// Another driver's, *pq.Error say: a struct with the same fields, which this package has no type for.
	v := reflect.ValueOf(err)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return err
	}
	clean := reflect.New(v.Elem().Type())
	clean.Elem().Set(v.Elem())
	for _, name := range []string{"Detail", "Where"} {
		if f := clean.Elem().FieldByName(name); f.IsValid() && f.CanSet() && f.Kind() == reflect.String {
			f.SetString("")
		}
	}
	return clean.Interface().(error)
}
