package idemhttp_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/idem/idemhttp"
	"github.com/pgonce/pgonce/idem/idemsql"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
	"github.com/pgonce/pgonce/internal/rig/pgtest"
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv(asServer); dsn != "" {
		serveAsProcess(dsn)
		return
	}
	pgtest.Main(m)
}

type wrap = func(http.Handler) http.Handler

// door opens the middleware on a database, over a script that may break its connections.
type door struct {
	name string
	open opener
}

type opener = func(t testing.TB, dsn string, script *faultconn.Script, s settings, c idemhttp.Config) (wrap, error)

func (d door) String() string { return d.name }

type settings struct {
	wait         time.Duration
	tries        int
	serializable bool
}

var doors = []door{
	{"pgx", overPgx(pgx.QueryExecModeCacheStatement)},
	{"pgx/simple", overPgx(pgx.QueryExecModeSimpleProtocol)},
	{"stdlib", overSQL(func(t testing.TB, dsn string, script *faultconn.Script) *sql.DB {
		cfg, err := pgx.ParseConfig(dsn)
		require.NoError(t, err)
		if script != nil {
			script.Attach(&cfg.Config)
		}
		return stdlib.OpenDB(*cfg)
	})},
	{"pq", overSQL(func(t testing.TB, dsn string, script *faultconn.Script) *sql.DB {
		c, err := pq.NewConnector(dsn)
		require.NoError(t, err)
		if script != nil {
			c.Dialer(script)
		}
		return sql.OpenDB(c)
	})},
}

func overPgx(mode pgx.QueryExecMode) opener {
	return func(t testing.TB, dsn string, script *faultconn.Script, s settings, c idemhttp.Config) (wrap, error) {
		cfg, err := pgxpool.ParseConfig(dsn)
		require.NoError(t, err)
		cfg.ConnConfig.DefaultQueryExecMode, cfg.MaxConns = mode, 16
		if script != nil {
			script.Attach(&cfg.ConnConfig.Config)
		}
		once := idem.Once{MaxWait: s.wait, Tries: s.tries}
		if s.serializable {
			once.TxOptions.IsoLevel = pgx.Serializable
		}
		return idemhttp.New(pgtest.PoolConfig(t, cfg), once, c)
	}
}

func overSQL(open func(testing.TB, string, *faultconn.Script) *sql.DB) opener {
	return func(t testing.TB, dsn string, script *faultconn.Script, s settings, c idemhttp.Config) (wrap, error) {
		db := open(t, dsn, script)
		db.SetMaxOpenConns(16)
		db.SetMaxIdleConns(16)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		once := idemsql.Once{MaxWait: s.wait, Tries: s.tries}
		if s.serializable {
			once.TxOptions.Isolation = sql.LevelSerializable
		}
		return idemhttp.NewSQL(db, once, c)
	}
}

// bench is a database with a table of effects, and a way to it.
type bench struct {
	*testing.T
	door door
	dsn  string
	pool *pgxpool.Pool // sound, for looking
	runs atomic.Int32  // of the handler
}

// everyDoor runs a test over every way to the database.
func everyDoor(t *testing.T, test func(b *bench)) {
	t.Helper()
	for _, d := range doors {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			test(newBench(t, d))
		})
	}
}

func newBench(t *testing.T, d door) *bench {
	b := &bench{T: t, door: d, dsn: pgtest.DSN(t)}
	cfg, err := pgxpool.ParseConfig(b.dsn)
	require.NoError(t, err)
	b.pool = pgtest.PoolConfig(t, cfg)
	require.NoError(t, dedup.Migrate(t.Context(), b.pool))
	b.exec(`CREATE TABLE effects (ref text NOT NULL)`)
	return b
}

func (b *bench) exec(sql string) {
	b.Helper()
	_, err := b.pool.Exec(b.Context(), sql)
	require.NoError(b, err)
}

func (b *bench) count(table string) (n int) {
	b.Helper()
	require.NoError(b, b.pool.QueryRow(b.Context(), `SELECT count(*) FROM `+table).Scan(&n))
	return n
}

// wants compares the numbers of runs, effects and keys.
func (b *bench) wants(runs, effects, keys int) {
	b.Helper()
	got := [3]int{int(b.runs.Load()), b.count("effects"), b.count("processed_events")}
	require.Equal(b, [3]int{runs, effects, keys}, got, "runs, effects, keys")
}

// config is one whose callers name themselves.
func config() idemhttp.Config {
	return idemhttp.Config{
		Caller:  func(r *http.Request) (string, error) { return or(r.Header.Get("Caller"), "alice"), nil },
		OnError: func(*http.Request, error) {},
	}
}

func or(v, otherwise string) string {
	if v == "" {
		return otherwise
	}
	return v
}

// wrap wraps a handler, whose runs are counted.
func (b *bench) wrap(script *faultconn.Script, s settings, c idemhttp.Config, h http.HandlerFunc) http.Handler {
	b.Helper()
	w, err := b.door.open(b.T, b.dsn, script, s, c)
	require.NoError(b, err)
	return w(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.runs.Add(1)
		h(w, r)
	}))
}

// serve starts a server.
func (b *bench) serve(h http.Handler) *httptest.Server {
	srv := httptest.NewServer(h)
	b.Cleanup(srv.Close)
	return srv
}

// standard is a server of a handler with settings and configuration as they are.
func (b *bench) standard(h http.HandlerFunc) *httptest.Server {
	return b.serve(b.wrap(nil, settings{}, config(), h))
}

// effect writes one row in the request's transaction.
func effect(r *http.Request) error {
	return run(r.Context(), `INSERT INTO effects (ref) VALUES ('x')`)
}

// run runs a statement in the request's transaction, whichever door it came by.
func run(ctx context.Context, statement string) error {
	if tx, ok := idemhttp.Tx(ctx); ok {
		_, err := tx.Exec(ctx, statement)
		return err
	}
	tx, ok := idemhttp.SQLTx(ctx)
	if !ok {
		return fmt.Errorf("no transaction")
	}
	_, err := tx.ExecContext(ctx, statement)
	return err
}

// pay is a handler that writes, and says with what it was called.
func pay(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = effect(r)
	}
	if err != nil {
		idemhttp.Fail(r.Context(), err)
		http.Error(w, "no", http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "paid %d bytes", len(body))
}

// reply is a response as a client sees it.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) replayed() bool { return r.header.Get("Idempotent-Replayed") == "true" }

// send sends a request; more are names and values of headers.
func (b *bench) send(client *http.Client, method, url, key string, body io.Reader, more ...string) (reply, error) {
	req, err := http.NewRequestWithContext(b.Context(), method, url, body)
	require.NoError(b, err)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(more); i += 2 {
		req.Header.Add(more[i], more[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(got)}, err
}

// post posts a body to a server.
func (b *bench) post(srv *httptest.Server, key, body string, more ...string) reply {
	b.Helper()
	got, err := b.send(srv.Client(), http.MethodPost, srv.URL+"/payments", key, strings.NewReader(body), more...)
	require.NoError(b, err)
	return got
}

// wantProblem checks an answer of the middleware's own.
func (b *bench) wantProblem(got reply, status int, name string) {
	b.Helper()
	require.Equal(b, status, got.status, got.body)
	require.Equal(b, "application/problem+json", got.header.Get("Content-Type"))
	require.Contains(b, got.body, `#`+name+`"`)
	require.Contains(b, got.body, fmt.Sprintf(`"status":%d`, status))
}
