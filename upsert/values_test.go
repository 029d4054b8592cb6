package upsert_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/rig/pgtest"
	"github.com/pgonce/pgonce/upsert"
)

// sample is a Go value, and what is done with it.
type sample struct {
	name  string
	value any
	field reflect.Type
	stmt  func(table string, read upsert.Statement) doer
}

// doer applies a value, alone or as a batch of one.
type doer func(db upsert.DB, id string, many bool) (stored any, out upsert.Outcome, err error)

// given makes a sample of a value whose field has its type.
func given[F any](v F) sample {
	type row struct {
		ID string `db:"id"`
		V  F      `db:"v"`
		N  int    `db:"n"`
	}
	return sample{
		name: reflect.TypeFor[F]().String() + " " + form(v), value: v, field: reflect.TypeFor[F](),
		stmt: func(table string, read upsert.Statement) doer {
			s := upsert.Into[row](table).OnConflict("id").Set("v").Version("n").MustBuild()
			upsert.Borrow(s, read)
			return func(db upsert.DB, id string, many bool) (any, upsert.Outcome, error) {
				ctx := context.Background()
				if !many {
					res, err := s.Exec(ctx, db, row{id, v, 1})
					return res.Stored.V, res.Outcome, err
				}
				var res upsert.Result[row]
				_, err := s.ExecMany(ctx, db, slices.Values([]row{{id, v, 1}}), func(_ int, r upsert.Result[row]) { res = r })
				return res.Stored.V, res.Outcome, err
			}
		},
	}
}

// hostile are sessions in which values read and write otherwise.
var hostile = []map[string]string{
	{
		"DateStyle": "German", "IntervalStyle": "sql_standard", "TimeZone": "Asia/Kolkata", "extra_float_digits": "-15",
		"bytea_output": "escape", "xmloption": "document", "standard_conforming_strings": "off",
		"escape_string_warning": "off",
	},
	{
		"DateStyle": "SQL, DMY", "IntervalStyle": "iso_8601", "TimeZone": "America/St_Johns", "extra_float_digits": "0",
		"bytea_output": "escape", "quote_all_identifiers": "on",
	},
}

// bare is a driver by itself.
type bare struct {
	name string
	do   func(query string, args ...any) error
}

func bareDrivers(t *testing.T, cfg *pgxpool.Config) []bare {
	var all []bare
	for _, mode := range queryModes {
		cfg := cfg.Copy()
		cfg.ConnConfig.DefaultQueryExecMode = mode
		pool := pgtest.PoolConfig(t, cfg)
		all = append(all, bare{"pgx " + mode.String(), func(query string, args ...any) error {
			_, err := pool.Exec(context.Background(), query, args...)
			return err
		}})
	}
	for _, name := range []string{"postgres", "pgx"} {
		db := must(sql.Open(name, cfg.ConnString()))
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		all = append(all, bare{name, func(query string, args ...any) error {
			_, err := db.Exec(query, args...)
			return err
		}})
	}
	return all
}

// settled sets what a session begins with.
func settled(cfg *pgxpool.Config, settings map[string]string) *pgxpool.Config {
	cfg = cfg.Copy()
	for k, v := range settings {
		cfg.ConnConfig.RuntimeParams[k] = v
	}
	return cfg
}

// way is a way to the database, and a session that reads as it does.
type way struct {
	driver
	reads   *pgxpool.Pool
	strange bool
}

// located returns connections whose codecs say whose clock a time shows.
func located(t *testing.T, cfg *pgxpool.Config) *pgxpool.Pool {
	cfg = cfg.Copy()
	cfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		zone := time.FixedZone("east", 5*3600)
		m := conn.TypeMap()
		m.RegisterType(&pgtype.Type{
			Name: "timestamp", OID: pgtype.TimestampOID,
			Codec: &pgtype.TimestampCodec{ScanLocation: zone},
		})
		m.RegisterType(&pgtype.Type{
			Name: "timestamptz", OID: pgtype.TimestamptzOID,
			Codec: &pgtype.TimestamptzCodec{ScanLocation: zone},
		})
		return nil
	}
	return pgtest.PoolConfig(t, cfg)
}

// What is stored is what a driver by itself stores for the same value, or the value is refused before anything is
// written. What comes back is the value, in whatever session. The order of the drivers is that of their word: where
// they differ, pgx in its default mode is right. What the driver stores and this package refuses is in a file, for the
// types that every run tries.
func TestStoresWhatTheDriverStores(t *testing.T) {
	t.Parallel()
	cfg := pgtest.Config(t)
	pool := pgtest.PoolConfig(t, cfg)
	exec(t, pool, valueTypes, pgx.QueryExecModeSimpleProtocol)
	absent := map[string]bool{}
	for _, name := range []string{"citext", "hstore"} {
		if _, err := pool.Exec(context.Background(), "CREATE EXTENSION "+name); err != nil {
			absent[name], absent[name+"[]"] = true, true
		}
	}
	bares := pgtest.LongMatrix(bareDrivers(t, cfg), func(b bare) string { return b.name }, "pgx cache statement",
		"pgx simple protocol", "postgres")
	var ways []way
	for _, d := range pgtest.LongMatrix(drivers(t, cfg), func(d driver) string { return d.name }, "pgx cache statement",
		"pgx simple protocol", "postgres sql.DB") {
		ways = append(ways, way{d, pool, false})
	}
	at := located(t, cfg)
	ways = append(ways, way{driver{"pgx in a location", at}, at, false})
	for i, settings := range hostile {
		db := pgtest.PoolConfig(t, settled(cfg, settings))
		ways = append(ways, way{driver{fmt.Sprint("strange settings ", i), db}, pool, true})
	}
	server := get[int](t, pool, "SELECT current_setting('server_version_num')::int")
	golden := goldenRefusals(t, server)
	all := slices.Concat(samples(), moreSamples())
	some := pgtest.LongMatrix(columnTypes, func(typ string) string { return typ }, typicalTypes...)
	if !pgtest.Full() && len(some) < len(columnTypes) {
		some = commonTypes
	}
	for n, typ := range columnTypes {
		if absent[typ] || !slices.Contains(some, typ) {
			continue
		}
		bareTable, table := fmt.Sprintf("bare_%d", n), fmt.Sprintf("ours_%d", n)
		for _, name := range []string{bareTable, table} {
			exec(t, pool, "CREATE TABLE "+name+" (id text PRIMARY KEY, v "+typ+", n int)")
		}
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			type row struct {
				ID string  `db:"id"`
				V  *string `db:"v"`
				N  int     `db:"n"`
			}
			read := upsert.Into[row](table).OnConflict("id").Set("v").Version("n").MustBuild()
			_, err := read.Exec(context.Background(), pool, row{"", nil, 1})
			require.NoError(t, err)
			own := slices.Clone(ways)
			for i, w := range own {
				// One connection is for one goroutine at a time.
				if name, ok := strings.CutSuffix(w.name, " sql.Conn"); ok {
					_, conn := standard(t, cfg, name)
					own[i].db = upsert.SQL(conn)
				}
			}
			c := valueTest{pool: pool, bare: bareTable, table: table, bares: bares, ways: own, read: read}
			for i, s := range all {
				// PostgreSQL 14 takes the longest interval, and cannot print it.
				if v, ok := s.value.(pgtype.Interval); ok && server < 150000 && v.Microseconds == math.MaxInt64 && typ == "interval" {
					continue
				}
				c.run(t, fmt.Sprint(i), typ, s)
			}
			if slices.Contains(typicalTypes, typ) {
				golden(t, typ, c.refused)
			}
		})
	}
}

// goldenRefusals compares what a column refuses with what the file says of it. Where the answer of later servers is
// another one, the file has a section of theirs.
func goldenRefusals(t *testing.T, server int) func(t *testing.T, typ string, refused []string) {
	const file = "testdata/refused.txt"
	const head = "# What pgx by itself stores in a column, and this package refuses: the column's type, and below it " +
		"the values.\n" +
		"# A second section of a type is that of later servers.\n"
	var mu sync.Mutex
	found := map[string]string{}
	known := string(must(os.ReadFile(file)))
	read := func(name string) (string, bool) {
		_, text, ok := strings.Cut(known, "\n"+name+"\n")
		text, _, _ = strings.Cut(text, "\n\n")
		return strings.TrimRight(text, "\n"), ok
	}
	// section returns the name of what holds for this server.
	section := func(typ string) string {
		if typ == "interval" && server >= 170000 {
			return typ + " from PostgreSQL 17 on" // it may be infinite
		}
		return typ
	}
	if *upsert.Update {
		t.Cleanup(func() {
			text := head
			for _, typ := range typicalTypes {
				for _, name := range []string{typ, typ + " from PostgreSQL 17 on"} {
					lines, ok := found[name]
					if !ok {
						lines, ok = read(name)
					}
					if ok {
						text += "\n" + name + "\n" + lines + "\n"
					}
				}
			}
			require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		})
	}
	return func(t *testing.T, typ string, refused []string) {
		text := strings.Join(mapped(refused, func(r string) string { return "\t" + r }), "\n")
		mu.Lock()
		defer mu.Unlock()
		found[section(typ)] = text
		if !*upsert.Update {
			want, ok := read(section(typ))
			require.True(t, ok, "no section of the file: run the test with -update")
			require.Equal(t, want, text, "where the change is meant, run the test with -update")
		}
	}
}

func mapped(all []string, f func(string) string) (done []string) {
	for _, s := range all {
		done = append(done, f(s))
	}
	return done
}

// valueTest is one column type.
type valueTest struct {
	pool        *pgxpool.Pool
	bare, table string
	bares       []bare
	ways        []way
	read        upsert.Statement // of the table, used
	refused     []string
}

func (c *valueTest) run(t *testing.T, id, typ string, s sample) {
	t.Helper()
	stored := func(table, id string) *string {
		return get[*string](t, c.pool,
			"SELECT CASE WHEN v IS NOT NULL THEN pg_catalog.concat(v) END FROM "+table+" WHERE id = $1", id)
	}
	kept := map[string]bool{}
	var right *string
	usual := false // the driver in its default mode stores it
	for _, d := range c.bares {
		at := id + d.name
		if d.do("INSERT INTO "+c.bare+" (id, v) VALUES ($1, $2)", at, s.value) != nil {
			continue
		}
		text := stored(c.bare, at)
		if len(kept) == 0 {
			right = text
		}
		kept[form(text)] = true
		if usual = d.name == c.bares[0].name; usual {
			break
		}
	}
	do, first := s.stmt(c.table, c.read), true
	for _, w := range c.ways {
		for _, many := range []bool{false, true} {
			at := fmt.Sprint(id, w.name, many)
			fail := func(format string, args ...any) {
				t.Errorf("%s into %s, %s, many %v: %s", s.name, typ, w.name, many, fmt.Sprintf(format, args...))
			}
			back, out, err := do(w.db, at, many)
			if err != nil && strings.HasPrefix(typ, "xml") && w.strange {
				break // no document, and the driver itself says the same
			}
			if err != nil {
				if out != 0 || get[int](t, c.pool, "SELECT count(*) FROM "+c.table+" WHERE id = $1", at) != 0 {
					fail("an error, and the row is written: %v", err)
				}
				if w.strange && c.strangely(t, w, at, s) == "refused" {
					break
				}
				if !first {
					fail("%v, and not in the first way", err)
				}
				if !many {
					continue
				}
				if _, _, one := do(c.ways[0].db, at, false); one == nil {
					fail("refused in a batch only: %v", err)
				}
				// pgx stores a ragged slice on a connection that has seen one that is not, without what sticks out.
				if usual && !reflect.DeepEqual(s.value, ragged) {
					c.refused = append(c.refused, s.name)
				}
				return
			}
			first = false
			text := stored(c.table, at)
			if kept[`"{}"`] && strings.HasPrefix(typ, "json") {
				continue // pgx by itself stores nothing of a big.Rat, and of a big.Int that is no pointer
			}
			if len(kept) > 0 && !kept[form(text)] && !(w.strange && c.strangely(t, w, at, s) == form(text)) {
				fail("%s is stored, and by the driver itself %s", form(text), form(right))
			}
			// Strings of bytes come back in the server's digits, as in a bytea.
			digits := typ == "bytea[]" && strings.Contains(s.field.String(), "tring")
			if want := c.want(t, w, at, s, text); !digits && s.field.Kind() != reflect.Interface && form(back) != form(want) {
				fail("%s comes back, not %s; %s is stored", form(back), form(want), form(text))
			}
			if _, out, err := do(w.db, at, many); out != upsert.Unchanged || err != nil {
				fail("again it is %s, %v", out, err)
			}
		}
	}
}

// strangely is what the driver by itself stores in the strange session, for strings: those may depend on it.
func (c *valueTest) strangely(t *testing.T, w way, id string, s sample) string {
	t.Helper()
	if !strings.Contains(s.field.String(), "tring") && s.field.Kind() != reflect.Interface {
		return "none"
	}
	if _, err := w.db.(*pgxpool.Pool).Exec(context.Background(), "INSERT INTO "+c.bare+" (id, v) VALUES ($1, $2)",
		w.name+id, s.value); err != nil {
		return "refused"
	}
	return form(get[*string](t, c.pool, "SELECT pg_catalog.concat(v) FROM "+c.bare+" WHERE id = $1", w.name+id))
}

// want is what pgx reads from the row, or where it cannot, the text or the value as it was given.
func (c *valueTest) want(t *testing.T, w way, id string, s sample, text *string) any {
	t.Helper()
	read := func(dst any) bool {
		return w.reads.QueryRow(context.Background(), "SELECT v FROM "+c.table+" WHERE id = $1", id).Scan(dst) == nil
	}
	var at time.Time
	switch s.value.(type) {
	case namedTime:
		if read(&at) {
			return namedTime(at)
		}
	case stamp:
		if read(&at) {
			return stamp{at}
		}
	case sql.NullTime:
		if read(&at) {
			return sql.NullTime{Time: at, Valid: true}
		}
	}
	switch dst := reflect.New(s.field); {
	case s.field.Kind() == reflect.String || s.field.Kind() == reflect.Pointer && s.field.Elem().Kind() == reflect.String:
		if s.field == reflect.TypeFor[grade]() {
			return s.value
		}
		return text
	case read(dst.Interface()):
		return dst.Elem().Interface()
	}
	return s.value
}

// form writes a value in a form in which equal ones are equal.
func form(v any) string {
	switch v := v.(type) {
	case nil:
		return "nil"
	case time.Time:
		return v.UTC().Truncate(time.Microsecond).Format("2006-01-02T15:04:05.999999")
	case namedTime:
		return form(time.Time(v))
	case stamp:
		return form(v.Time)
	case json.Number:
		return fmt.Sprintf("%q", string(v))
	case fmt.Stringer:
		if r := reflect.ValueOf(v); r.Kind() != reflect.Pointer || !r.IsNil() {
			return v.String()
		}
	case pgtype.Numeric:
		f, _ := v.Float64Value()
		return fmt.Sprint(f.Float64)
	case big.Int:
		return v.String()
	case big.Rat:
		return v.String()
	case big.Float:
		return v.String()
	case json.RawMessage:
		return string(v)
	}
	switch r := reflect.ValueOf(v); {
	case r.Kind() == reflect.Pointer:
		if r.IsNil() {
			return "nil"
		}
		return form(r.Elem().Interface())
	case r.Kind() == reflect.String:
		return fmt.Sprintf("%q", r.String())
	case r.Kind() == reflect.Slice && r.IsNil():
		return "nil"
	case r.Kind() == reflect.Slice || r.Kind() == reflect.Array:
		var parts []string
		for i := range r.Len() {
			parts = append(parts, form(r.Index(i).Interface()))
		}
		return "[" + strings.Join(parts, " ") + "]"
	case r.Kind() == reflect.Map && !r.IsNil():
		var parts []string
		for _, k := range r.MapKeys() {
			parts = append(parts, form(k.Interface())+":"+form(r.MapIndex(k).Interface()))
		}
		slices.Sort(parts)
		return "map[" + strings.Join(parts, " ") + "]"
	case r.Kind() == reflect.Func:
		return "func"
	case r.Kind() == reflect.Struct && r.NumField() > 0:
		var parts []string
		for i := range r.NumField() {
			if r.Type().Field(i).IsExported() {
				parts = append(parts, form(r.Field(i).Interface()))
			}
		}
		return "{" + strings.Join(parts, " ") + "}"
	}
	return fmt.Sprintf("%v", v)
}
