package upsert_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pgonce/pgonce/upsert"
)

// thing has a column of every role. Its table lets everything be NULL but n, which has a default.
type thing struct {
	ID   string  `db:"id"`
	A    *string `db:"a"`    // Set
	B    *string `db:"b"`    // SetIfNotNull
	N    *string `db:"n"`    // SetIfNotNull, NOT NULL DEFAULT 'd'
	C    *string `db:"c"`    // SetOnInsert
	Gone *bool   `db:"gone"` // Tombstone, or never written
	V    *int    `db:"v"`
	E    *int    `db:"e"`
	F    *int    `db:"f"`
}

const thingColumns = "id text, a text, b text, n text NOT NULL DEFAULT 'd', c text, gone bool, v int, e int, f int"

// modelRule is a statement, and what the model needs to know of it.
type modelRule struct {
	name      string
	stmt      *upsert.Stmt[thing]
	versions  int // 0: FirstWins or LastWins
	first     bool
	tombstone bool
	single    bool // no ExecMany
	noN       bool // the statement never writes n
}

func modelRules() []modelRule {
	base := upsert.Into[thing]("things").OnConflict("id").SetOnInsert("c")
	set := base.Set("a").SetIfNotNull("b", "n")
	return []modelRule{
		{name: "v", stmt: set.Version("v").MustBuild(), versions: 1},
		{name: "v,e", stmt: set.Version("v", "e").MustBuild(), versions: 2},
		{name: "v,e,f", stmt: set.Version("v", "e", "f").MustBuild(), versions: 3},
		{name: "v,e and tombstone", stmt: set.Version("v", "e").Tombstone("gone").MustBuild(), versions: 2, tombstone: true},
		{name: "first wins", stmt: base.FirstWins().MustBuild(), first: true},
		{name: "last wins", stmt: set.LastWins().MustBuild()},
	}
}

func (t thing) version(n int) []*int { return []*int{t.V, t.E, t.F}[:n] }

// newer compares as the documentation says: in turn, a stored NULL oldest. 1: e is newer, 0: equal, -1: older.
func newer(e, stored thing, n int) int {
	for i := range n {
		s, v := stored.version(n)[i], *e.version(n)[i]
		switch {
		case s == nil || *s < v:
			return 1
		case *s > v:
			return -1
		}
	}
	return 0
}

// become returns what e makes of the stored row, which may be nil.
func (m modelRule) become(e thing, stored *thing) thing {
	d := "d"
	row := thing{ID: e.ID, C: e.C, N: &d}
	if stored != nil {
		row = *stored
	}
	if m.first {
		return row
	}
	row.A = e.A
	if e.B != nil {
		row.B = e.B
	}
	if e.N != nil {
		row.N = e.N
	}
	if m.tombstone {
		row.Gone = e.Gone
	}
	for i, p := range []**int{&row.V, &row.E, &row.F}[:m.versions] {
		*p = e.version(m.versions)[i]
	}
	return row
}

// verdict is an outcome, or what is wrong.
type verdict struct {
	outcome upsert.Outcome
	err     error
}

func equal[V comparable](a, b *V) bool { return a == b || a != nil && b != nil && *a == *b }

func same(a, b thing) bool {
	return equal(a.A, b.A) && equal(a.B, b.B) && equal(a.N, b.N) && equal(a.Gone, b.Gone)
}

// one applies a single event.
func (m modelRule) one(e thing, stored *thing) (verdict, *thing) {
	if slices.Contains(e.version(m.versions), nil) {
		return verdict{0, upsert.ErrInvalidRow}, stored
	}
	next := m.become(e, stored)
	switch {
	case stored == nil:
		return verdict{outcome: upsert.Inserted}, &next
	case m.first:
		return verdict{outcome: upsert.Unchanged}, stored
	case m.versions == 0 && same(next, *stored):
		return verdict{outcome: upsert.Unchanged}, stored
	case m.versions == 0 || newer(e, *stored, m.versions) > 0:
		return verdict{outcome: upsert.Updated}, &next
	case newer(e, *stored, m.versions) < 0:
		return verdict{outcome: upsert.Stale}, stored
	case same(next, *stored):
		return verdict{outcome: upsert.Unchanged}, stored
	}
	return verdict{0, upsert.ErrVersionConflict}, stored
}

// many applies the events of one key in one call, and returns for each the row that it is told of too.
func (m modelRule) many(es []thing, before *thing) (vs []verdict, told []*thing, after *thing) {
	vs, told, after = make([]verdict, len(es)), make([]*thing, len(es)), before
	win := -1
	for i, e := range es {
		if vs[i], _ = m.one(e, before); errors.Is(vs[i].err, upsert.ErrInvalidRow) {
			continue
		}
		if win < 0 || m.versions > 0 && newer(e, es[win], m.versions) > 0 || m.versions == 0 && !m.first {
			win = i
		}
	}
	if win >= 0 {
		vs[win], after = m.one(es[win], before)
	}
	for i, e := range es {
		told[i] = before
		if vs[i].outcome != upsert.Inserted && vs[i].outcome != upsert.Updated {
			continue // settled by what was stored before
		}
		if told[i] = after; i == win {
			continue
		}
		switch {
		case m.first:
			vs[i] = verdict{outcome: upsert.Unchanged}
		case m.versions == 0:
			vs[i] = verdict{outcome: upsert.Stale}
		default:
			vs[i], _ = m.one(e, after)
		}
	}
	return vs, told, after
}

// TestModel compares with a model: what every call says, row by row, and what is stored after it.
func TestModel(t *testing.T) {
	t.Parallel()
	rules := modelRules()
	onKinds(t, func(t *testing.T, pool *pgxpool.Pool, kind string) {
		ctx := context.Background()
		create(t, pool, kind, "things", thingColumns)
		cases := 0
		var tx pgx.Tx
		t.Cleanup(func() {
			if tx != nil {
				_ = tx.Rollback(ctx)
			}
		})
		rapid.Check(t, func(rt *rapid.T) {
			// A transaction for many cases keeps them fast; a key of its own keeps each apart.
			if cases++; tx == nil || cases%500 == 0 {
				if tx != nil {
					require.NoError(rt, tx.Commit(ctx))
				}
				var err error
				tx, err = pool.Begin(ctx)
				require.NoError(rt, err)
			}
			check(rt, tx, rapid.SampledFrom(rules).Draw(rt, "rule"), fmt.Sprintf("%d_%d", cases%10, cases))
		})
	})
}

func drawEvent(rt *rapid.T, m modelRule, id string) thing {
	text := rapid.Ptr(rapid.SampledFrom([]string{"x", "y", "", `"\,{}'NULL`}), true)
	number := rapid.Custom(func(rt *rapid.T) *int {
		// A NULL is refused, so it is not drawn too often.
		if rapid.IntRange(0, 11).Draw(rt, "null") == 0 {
			return nil
		}
		n := rapid.IntRange(-1, 2).Draw(rt, "n")
		return &n
	})
	e := thing{
		ID: id, A: text.Draw(rt, "a"), B: text.Draw(rt, "b"), N: text.Draw(rt, "n"), C: text.Draw(rt, "c"),
		V: number.Draw(rt, "v"), E: number.Draw(rt, "e"), F: number.Draw(rt, "f"),
	}
	if m.tombstone {
		gone := rapid.Bool().Draw(rt, "gone")
		e.Gone = &gone
	}
	if m.noN {
		e.N = nil
	}
	return e
}

func check(rt *rapid.T, tx pgx.Tx, m modelRule, key string) {
	ctx := context.Background()
	keys := []string{key + "a", key + "b"}
	stored := map[string]*thing{}
	for _, k := range keys {
		if !rapid.Bool().Draw(rt, "there before") {
			continue
		}
		row := drawEvent(rt, m, k)
		if row.N == nil {
			d := "d"
			row.N = &d
		}
		_, err := tx.Exec(ctx, "INSERT INTO things VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
			row.ID, row.A, row.B, row.N, row.C, row.Gone, row.V, row.E, row.F)
		require.NoError(rt, err)
		stored[k] = &row
	}
	for range rapid.IntRange(1, 3).Draw(rt, "calls") {
		events := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) thing {
			return drawEvent(rt, m, rapid.SampledFrom(keys).Draw(rt, "key"))
		}), 1, 5).Draw(rt, "events")
		got := make([]upsert.Result[thing], len(events))
		want := make([]verdict, len(events))
		told := make([]*thing, len(events))
		if !m.single && rapid.Bool().Draw(rt, "bulk") {
			listed := rapid.Bool().Draw(rt, "listed")
			var each func(int, upsert.Result[thing])
			if listed {
				each = func(i int, r upsert.Result[thing]) { got[i] = r }
			}
			sum, err := m.stmt.ExecMany(ctx, tx, slices.Values(events), each)
			if err != nil && !errors.As(err, new(*upsert.RowError)) {
				rt.Fatal(err)
			}
			for _, k := range keys {
				var at []int
				var es []thing
				for i, e := range events {
					if e.ID == k {
						at, es = append(at, i), append(es, e)
					}
				}
				vs, rows, after := m.many(es, stored[k])
				stored[k] = after
				for j, i := range at {
					want[i], told[i] = vs[j], rows[j]
				}
			}
			require.Equal(rt, count(want), sum, "%s: %v", m.name, events)
			require.Equal(rt, sum.Failed > 0, err != nil)
			if !listed {
				continue
			}
		} else {
			e := events[0]
			events, got, want = events[:1], got[:1], want[:1]
			got[0], _ = m.stmt.Exec(ctx, tx, e)
			want[0], stored[e.ID] = m.one(e, stored[e.ID])
			told[0] = stored[e.ID]
		}
		for i, e := range events {
			require.ErrorIs(rt, got[i].Err, want[i].err, "%s: event %d: %s", m.name, i, show(e))
			require.Equal(rt, want[i].outcome, got[i].Outcome, "%s: event %d: %s", m.name, i, show(e))
			if !errors.Is(got[i].Err, upsert.ErrInvalidRow) {
				require.Equal(rt, show(*told[i]), show(got[i].Stored), "%s: what event %d found stored", m.name, i)
			}
		}
	}
	rows, err := tx.Query(ctx, "SELECT id, a, b, n, c, gone, v, e, f FROM things WHERE id = $1 OR id = $2", keys[0],
		keys[1])
	require.NoError(rt, err)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByName[thing])
	require.NoError(rt, err)
	for _, row := range found {
		require.NotNil(rt, stored[row.ID])
		require.Equal(rt, show(*stored[row.ID]), show(row), "%s: what is stored", m.name)
		delete(stored, row.ID)
	}
	for k, row := range stored {
		require.Nil(rt, row, "%s is not stored", k)
	}
}

func count(vs []verdict) (s upsert.Summary) {
	for _, v := range vs {
		*map[upsert.Outcome]*int{
			0: &s.Failed, upsert.Inserted: &s.Inserted, upsert.Updated: &s.Updated, upsert.Stale: &s.Stale,
			upsert.Unchanged: &s.Unchanged,
		}[v.outcome]++
	}
	return s
}

func show(t thing) string {
	s := func(p *string) string {
		if p == nil {
			return "NULL"
		}
		return fmt.Sprintf("%q", *p)
	}
	n := func(p *int) string {
		if p == nil {
			return "NULL"
		}
		return fmt.Sprint(*p)
	}
	gone := "NULL"
	if t.Gone != nil {
		gone = fmt.Sprint(*t.Gone)
	}
	return fmt.Sprintf("{id %s a %s b %s n %s c %s gone %s v %s e %s f %s}",
		t.ID, s(t.A), s(t.B), s(t.N), s(t.C), gone, n(t.V), n(t.E), n(t.F))
}
