package idem_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
)

// modelWorker is a worker whose clock is its own, and whose server sessions have a time zone of their own.
type modelWorker struct {
	name string
	pool *pgxpool.Pool
	work chan func()
	held []modelHeld
}

// modelHeld is a reservation as the worker remembers it, and as the model knows it.
type modelHeld struct {
	idem.Reservation
	key, birth int
}

// do runs f where the worker's clock counts.
func (w *modelWorker) do(f func()) {
	done := make(chan struct{})
	w.work <- func() { defer close(done); f() }
	<-done
}

// modelWorkers starts workers with clocks that are right, an hour slow, an hour fast, and at the beginning of the
// year 2000. see is given the arguments of each of their statements, and the worker's time.
func (s *site) modelWorkers(see func(now time.Time, args []any)) []*modelWorker {
	now := time.Now().Round(0) // without the monotonic reading, which means nothing in a bubble
	var all []*modelWorker
	for _, c := range []struct {
		name, zone string
		clock      time.Time
	}{
		{"right", "UTC", time.Time{}},
		{"an hour slow", "Pacific/Kiritimati", now.Add(-time.Hour)},
		{"an hour fast", "America/Anchorage", now.Add(time.Hour)},
		{"in the year 2000", "Asia/Kolkata", time.Date(2000, 1, 1, 0, 1, 0, 0, time.UTC)},
	} {
		w := &modelWorker{name: c.name, work: make(chan func())}
		cfg := s.cfg.Copy()
		cfg.MaxConns = 2
		cfg.ConnConfig.RuntimeParams["timezone"] = c.zone
		cfg.ConnConfig.Tracer = argsTracer{see}
		ready, ended := make(chan error, 1), make(chan struct{})
		serve := func() {
			var err error
			w.pool, err = pgxpool.NewWithConfig(context.Background(), cfg)
			ready <- err
			if err != nil {
				return
			}
			defer w.pool.Close()
			for f := range w.work {
				f()
			}
		}
		go func() {
			defer close(ended)
			if c.clock.IsZero() {
				serve()
				return
			}
			// A bubble has a clock of its own. It goes on when everybody in it sleeps, as here, and stands still while
			// somebody waits for the network or for the world outside.
			synctest.Test(s.T, func(*testing.T) {
				time.Sleep(time.Until(c.clock))
				serve()
			})
		}()
		s.Cleanup(func() { close(w.work); <-ended })
		require.NoError(s, <-ready)
		all = append(all, w)
	}
	return all
}

// argsTracer shows the arguments of every statement.
type argsTracer struct {
	see func(now time.Time, args []any)
}

func (a argsTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	a.see(time.Now(), clockless(d.SQL, d.Args))
	return ctx
}

func (a argsTracer) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	a.see(time.Now(), clockless(d.SQL, d.Args))
}

func (a argsTracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (a argsTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (a argsTracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// clockless returns args without the token, which is the last of a statement that writes one. It is random, and one
// in 300 looks like a time in nanoseconds.
func clockless(sql string, args []any) []any {
	if _, isNumber := append([]any{nil}, args...)[len(args)].(int64); isNumber && strings.Contains(sql, "token") {
		return args[:len(args)-1]
	}
	return args
}

// clientTime returns an argument that may come from the client's clock, or nil. It looks at workers of the year 2000
// only: a number of theirs that is near to their time in any unit can be nothing else.
func clientTime(now time.Time, args []any) any {
	const near = 366 * 24 * time.Hour
	for _, a := range args {
		switch a := a.(type) {
		case time.Time, *time.Time:
			return a
		case int64:
			for _, t := range []time.Time{time.Unix(a, 0), time.UnixMilli(a), time.UnixMicro(a), time.Unix(0, a)} {
				if now.Year() == 2000 && t.Sub(now).Abs() < near {
					return a
				}
			}
		case string, []byte, nil:
		default:
			return fmt.Sprintf("%T", a) // not one of the kinds that are known to be harmless
		}
	}
	return nil
}

// modelRow is a key as it should be.
type modelRow struct {
	state          idem.State // 0: there is no row
	attempt, birth int
	value          string
	born           time.Time // what the table said of this birth
	effects        int       // that were confirmed
	settlements    int       // of this birth
}

func (r *modelRow) open() bool { return r.state == idem.Reserved || r.state == idem.Unfinished }

func (r *modelRow) settle(to idem.State, value string) {
	r.state, r.value = to, value
	r.settlements++
}

func (r *modelRow) void() { *r = modelRow{birth: r.birth, effects: r.effects} }

func (r *modelRow) bear(state idem.State) {
	*r = modelRow{state: state, attempt: 1, birth: r.birth + 1, effects: r.effects}
}

// model is a schedule that runs on the database and on the rows as they should be.
type model struct {
	*site
	rand    *rand.Rand
	name    string
	workers []*modelWorker
	rows    []modelRow
	steps   []string
	moves   map[string]int
}

func (m *model) key(k int) idem.Key { return stripe.Key(m.name, fmt.Sprint(k)) }

// want compares what a call returned with what it should have.
func (m *model) want(err, want error) {
	m.Helper()
	if want == nil {
		require.NoError(m, err, "%s", m)
		return
	}
	require.ErrorIs(m, err, want, "%s", m)
}

func (m *model) String() string { return "after " + strings.Join(m.steps, ", ") }

// step makes one random move.
func (m *model) step() {
	w, k := m.workers[m.rand.IntN(len(m.workers))], m.rand.IntN(len(m.rows))
	ops := []struct {
		name   string
		weight int
		op     func(w *modelWorker, k int)
	}{
		{"reserve", 6, m.reserve},
		{"expire", 5, m.expire},
		{"call", 6, m.call},
		{"use", 14, m.use},
		{"crash", 1, func(w *modelWorker, _ int) { w.held = nil }},
		{"run", 1, m.run},
		{"forget", 4, m.forget},
	}
	n := 0
	for _, o := range ops {
		n += o.weight
	}
	n = m.rand.IntN(n)
	for _, o := range ops {
		if n -= o.weight; n < 0 {
			m.note("%s: %s %d", w.name, o.name, k)
			o.op(w, k)
			break
		}
	}
	for k := range m.rows {
		m.compare(k)
	}
}

func (m *model) note(format string, args ...any) {
	m.steps = append(m.steps, fmt.Sprintf(format, args...))
}

func (m *model) count(move string) { m.moves[move]++ }

// compare looks whether the table agrees.
func (m *model) compare(k int) {
	m.Helper()
	row := &m.rows[k]
	rec, err := idem.Once{}.Lookup(m.ctx, m.sound, m.key(k))
	if row.state == 0 {
		m.want(err, idem.ErrNotFound)
		return
	}
	m.want(err, nil)
	require.Equal(m, row.state, rec.State, "key %d %s", k, m)
	require.Equal(m, row.attempt, rec.Attempt, "key %d %s", k, m)
	require.Equal(m, row.value, string(rec.Value), "key %d %s", k, m)
	if row.born.IsZero() {
		row.born = rec.ProcessedAt
		require.Less(m, rec.Age, time.Minute, "the server's clock decides")
	}
	require.True(m, row.born.Equal(rec.ProcessedAt), "key %d was born again %s", k, m)
	require.LessOrEqual(m, row.settlements, 1, "%s", m)
}

func (m *model) reserve(w *modelWorker, k int) {
	row := &m.rows[k]
	var r idem.Reservation
	var out idem.Outcome
	var err error
	w.do(func() { r, out, err = idem.Once{}.Reserve(context.Background(), w.pool, m.key(k), time.Hour) })
	switch row.state {
	case 0:
		row.bear(idem.Reserved)
		m.count("reserved")
	case idem.Unfinished:
		row.state = idem.Reserved
		row.attempt++
		m.count("taken over")
	case idem.Reserved:
		m.want(err, idem.ErrInProgress)
		m.count("refused")
		return
	case idem.Done:
		m.want(err, nil)
		require.Equal(m, idem.Duplicate, out, "%s", m)
		require.Equal(m, row.value, string(r.Value), "%s", m)
		return
	default:
		m.wantFinal(err, row)
		return
	}
	m.want(err, nil)
	require.Equal(m, idem.Executed, out, "%s", m)
	require.Equal(m, row.attempt, r.Attempt, "%s", m)
	w.held = append(w.held, modelHeld{r, k, row.birth})
}

func (m *model) wantFinal(err error, row *modelRow) {
	m.Helper()
	var final *idem.FinalError
	require.ErrorAs(m, err, &final, "%s", m)
	require.Equal(m, row.value, string(final.Value), "%s", m)
}

// expire lets a lease run out.
func (m *model) expire(_ *modelWorker, k int) {
	if row := &m.rows[k]; row.state == idem.Reserved {
		row.state = idem.Unfinished
		m.site.expire(m.key(k))
	}
}

// use makes a move of a holder, with a reservation that may long be somebody else's, or gone.
func (m *model) use(w *modelWorker, _ int) {
	if len(w.held) == 0 {
		return
	}
	recent := w.held[max(0, len(w.held)-4):]
	h := recent[m.rand.IntN(len(recent))]
	row := &m.rows[h.key]
	holds := row.open() && row.birth == h.birth && row.attempt == h.Attempt
	moves := []string{"confirm", "confirm and roll back", "fail", "extend", "release", "void"}
	move := moves[m.rand.IntN(len(moves))]
	m.note("%s %d, attempt %d", move, h.key, h.Attempt)
	value := fmt.Sprintf(`{"ID":"%d"}`, len(m.steps))
	var err error
	w.do(func() {
		ctx := context.Background()
		switch move {
		case "confirm", "confirm and roll back":
			roll := errors.New("roll back")
			err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
				if err := m.effect(m.key(h.key), new(atomic.Int32))(ctx, tx); err != nil {
					return err
				}
				if err := h.Confirm(ctx, tx, []byte(value)); err != nil || move == "confirm" {
					return err
				}
				return roll
			})
			if errors.Is(err, roll) {
				err = nil
			}
		case "fail":
			err = h.Fail(ctx, w.pool, []byte(value))
		case "extend":
			err = h.Extend(ctx, w.pool, time.Hour)
		case "release":
			err = h.Release(ctx, w.pool)
		case "void":
			err = h.Void(ctx, w.pool)
		}
	})
	if !holds {
		m.want(err, idem.ErrLostLease)
		m.count("fenced")
		return
	}
	m.want(err, nil)
	m.count(move)
	switch {
	case move == "confirm":
		row.settle(idem.Done, value)
		row.effects++
	case move == "fail":
		row.settle(idem.FinallyFailed, value)
	case move == "extend":
		row.state = idem.Reserved
	case move == "void", move == "release" && row.attempt == 1:
		row.void()
	case move == "release":
		row.state = idem.Unfinished
		row.attempt++
	}
}

// call makes a Call, whose Send ends in one of many ways, over a provider that remembers for ever, or not at all.
func (m *model) call(w *modelWorker, k int) {
	row := &m.rows[k]
	ends := []string{"good", "error", "final", "unsent", "panic", "outlived"}
	end, remembers := ends[m.rand.IntN(len(ends))], m.rand.IntN(2) == 0
	m.note("Send: %s, remembers: %v", end, remembers)
	answer := receipt{ID: fmt.Sprint(len(m.steps)), Amount: 1}
	own := errors.New("own")
	sent := false
	c := idem.Call[receipt]{
		Lease: time.Hour,
		Send: func(ctx context.Context, _ string) (receipt, error) {
			sent = true
			if ctx.Err() != nil {
				return receipt{}, ctx.Err()
			}
			switch end {
			case "error":
				return receipt{}, own
			case "final":
				return receipt{}, idem.Final(own)
			case "unsent":
				return receipt{}, idem.Unsent(own)
			case "panic":
				panic(own)
			case "outlived":
				if _, err := w.pool.Exec(ctx, `UPDATE processed_events SET lease_until = '-infinity' WHERE key = $1`,
					m.key(k).ID()); err != nil {
					return receipt{}, err
				}
				if _, _, err := (idem.Once{}).Reserve(ctx, w.pool, m.key(k), time.Hour); err != nil {
					return receipt{}, err
				}
			}
			return answer, nil
		},
		Apply: func(ctx context.Context, tx pgx.Tx, _ receipt) error {
			return m.effect(m.key(k), new(atomic.Int32))(ctx, tx)
		},
	}
	if remembers {
		c.Remembers = 100 * 24 * time.Hour
	}
	var v receipt
	var out idem.Outcome
	var err error
	w.do(func() {
		defer func() {
			if r := recover(); r != nil {
				err = r.(error)
			}
		}()
		v, out, err = c.Run(context.Background(), w.pool, m.key(k))
	})
	switch {
	case row.state == idem.Reserved:
		m.want(err, idem.ErrInProgress)
		require.False(m, sent, "%s", m)
		return
	case row.state == idem.Done:
		m.want(err, nil)
		require.Equal(m, idem.Duplicate, out, "%s", m)
		var want receipt
		require.NoError(m, json.Unmarshal([]byte(row.value), &want))
		require.Equal(m, want, v, "%s", m)
		require.False(m, sent, "%s", m)
		return
	case row.state == idem.FinallyFailed:
		m.wantFinal(err, row)
		require.False(m, sent, "%s", m)
		return
	case row.state == idem.Unfinished && !remembers:
		m.want(err, idem.ErrUnknown)
		require.False(m, sent, "%s", m)
		m.count("unknown")
		return
	case row.state == 0:
		row.bear(idem.Unfinished)
	default:
		row.attempt++
		m.count("taken over")
	}
	require.True(m, sent, "%s", m)
	m.count("Send: " + end)
	switch end {
	case "good":
		m.want(err, nil)
		require.Equal(m, idem.Executed, out, "%s", m)
		text, _ := json.Marshal(answer)
		row.settle(idem.Done, string(text))
		row.effects++
	case "error", "panic":
		m.want(err, own)
		row.state = idem.Unfinished
	case "final":
		m.want(err, own)
		row.settle(idem.FinallyFailed, own.Error())
	case "unsent":
		m.want(err, own)
		if row.state = idem.Unfinished; row.attempt == 1 {
			row.void()
		} else {
			row.attempt++
		}
	case "outlived":
		m.want(err, idem.ErrLostLease)
		row.state = idem.Reserved // the other attempt's
		row.attempt++
	}
}

// run delivers the key to Run: it respects reservations, and makes none.
func (m *model) run(w *modelWorker, k int) {
	row := &m.rows[k]
	var out idem.Outcome
	var err error
	key := m.key(k)
	w.do(func() { out, err = idem.Run(context.Background(), w.pool, key, m.effect(key, new(atomic.Int32))) })
	switch row.state {
	case 0:
		m.want(err, nil)
		require.Equal(m, idem.Executed, out, "%s", m)
		row.bear(idem.Done)
		row.settle(idem.Done, "")
		row.effects++
		// Later steps decode what is stored.
		row.value = `{}`
		m.sql(`UPDATE processed_events SET value = '{}' WHERE key = '` + key.ID() + `'`)
	case idem.Reserved:
		m.want(err, idem.ErrInProgress)
	case idem.Unfinished:
		m.want(err, idem.ErrUnfinished)
	case idem.Done:
		m.want(err, nil)
		require.Equal(m, idem.Duplicate, out, "%s", m)
	default:
		m.wantFinal(err, row)
	}
}

// forget deletes a key that is settled, as a purge does. The next birth of it is another one.
func (m *model) forget(_ *modelWorker, k int) {
	row := &m.rows[k]
	err := pgx.BeginFunc(m.ctx, m.sound, func(tx pgx.Tx) error { return idem.Once{}.Forget(m.ctx, tx, m.key(k)) })
	switch row.state {
	case 0:
		m.want(err, idem.ErrNotFound)
	case idem.Reserved:
		m.want(err, idem.ErrInProgress)
	case idem.Unfinished:
		m.want(err, idem.ErrUnfinished)
	default:
		m.want(err, nil)
		row.void()
	}
}

// Random schedules of workers that reserve, call, move on, come late, crash and forget, on few keys, in which any lease
// can run out at any point: what every call returns, and what the table holds after it, is what the model says. The
// workers' clocks are off, by up to a quarter of a century, and no statement takes a time from them.
func TestReservationModel(t *testing.T) {
	t.Parallel()
	schedules, steps, least := 30, 50, 1
	if long {
		schedules, steps, least = 300, 100, 50
	}
	s := newSite(t)
	var statements, old atomic.Int64
	var leaked atomic.Value
	workers := s.modelWorkers(func(now time.Time, args []any) {
		statements.Add(1)
		if now.Year() == 2000 {
			old.Add(1)
		}
		if a := clientTime(now, args); a != nil {
			leaked.Store(a)
		}
	})
	r := seeded(t)
	moves := map[string]int{}
	all := []string{
		"reserved", "taken over", "refused", "fenced", "confirm", "confirm and roll back", "fail", "extend", "release",
		"void", "unknown",
		"Send: good", "Send: error", "Send: final", "Send: unsent", "Send: panic", "Send: outlived",
	}
	rare := func() bool { return slices.ContainsFunc(all, func(move string) bool { return moves[move] < least }) }
	for i := 0; i < schedules || rare() && i < 10*schedules; i++ {
		m := &model{site: s, rand: r, name: fmt.Sprint(i), workers: workers, rows: make([]modelRow, 3), moves: moves}
		for _, w := range workers {
			w.held = nil
		}
		for range steps {
			m.step()
		}
		for k := range m.rows {
			require.Equal(t, m.rows[k].effects, s.effects(m.key(k)), "%s", m)
		}
	}
	require.Nil(t, leaked.Load(), "an argument that depends on the client's clock")
	t.Logf("%d schedules, %d statements, %d of them by a worker of the year 2000: %v", schedules, statements.Load(),
		old.Load(), moves)
	for _, move := range all {
		require.GreaterOrEqual(t, moves[move], least, "%s: or this proves nothing", move)
	}
	require.Greater(t, old.Load(), statements.Load()/10)
}
