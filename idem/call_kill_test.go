package idem_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/idem"
	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

const callerEnv = "PGONCE_CALLER"

// callerSpec is what a process is told that delivers orders to a Call, one after the other.
type callerSpec struct {
	DSN, Provider string
	Remembers     time.Duration
	Orders        []string
	Outcomes      string // a file: for each delivery that ended, the order and how
	Point         string // where it dies; "" to live
}

// The points at which a process is killed, in the order of a call. An order that is declined reaches those of the
// second list, one at which the provider fails after it has charged the last one.
var (
	callPoints = []string{
		"before reserve", "reserved, no reply", // the server has committed; the client does not know
		"before the call", "request half written", "received, not charged", "killed, then charged", "charged, no reply",
		"after the call",
		"in Apply", "before commit", "committed, no reply",
	}
	declinedPoints = []string{"before fail", "failed, no reply"}
	flakyPoints    = []string{"before end"}
)

const callerLease = 30 * time.Second

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// replyTo fits the server's ReadyForQuery after a statement with this text: it is done, and committed.
func replyTo(text string) func(faultconn.Message) bool {
	var sent atomic.Bool
	statement := faultconn.Containing(text)
	return func(m faultconn.Message) bool {
		if statement(m) {
			sent.Store(true)
		}
		return sent.Load() && m.From == faultconn.Backend && m.Type == "ReadyForQuery"
	}
}

// caller is the process.
func caller(spec string) int {
	var c callerSpec
	if err := json.Unmarshal([]byte(spec), &c); err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cfg, err := pgxpool.ParseConfig(c.DSN)
	if err != nil {
		return fail(err)
	}
	script := &faultconn.Script{When: map[string]func(faultconn.Message) bool{
		"before reserve":      faultconn.Containing("processed_at, lease_until, token)"),
		"reserved, no reply":  replyTo("processed_at, lease_until, token)"),
		"before commit":       faultconn.Commit,
		"committed, no reply": faultconn.CommitReply,
		"before fail":         faultconn.Containing("failed = true"),
		"failed, no reply":    replyTo("failed = true"),
		"before end":          faultconn.Containing("least(lease_until"),
	}[c.Point]}
	if script.When != nil {
		script.Do = func(faultconn.Message) { die() }
	}
	script.Attach(&cfg.ConnConfig.Config)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return fail(err)
	}
	defer pool.Close()
	for _, order := range c.Orders {
		_, out, err := c.call(order).Run(ctx, pool, stripe.Key(order))
		text := out.String()
		var final *idem.FinalError
		switch {
		case err == nil:
		case errors.As(err, &final):
			text = "final"
		case errors.Is(err, idem.ErrUnknown):
			text = "unknown"
		case errors.Is(err, idem.ErrInProgress):
			text = "in progress"
		case errors.Is(err, errProvider):
			text = "provider failed"
		default:
			return fail(err)
		}
		appendLine(c.Outcomes, order+"\t"+text)
	}
	return 0
}

var errProvider = errors.New("the provider failed")

func (c callerSpec) call(order string) idem.Call[receipt] {
	at := func(point string) {
		if c.Point == point {
			die()
		}
	}
	return idem.Call[receipt]{
		Lease: callerLease, Remembers: c.Remembers,
		Send: func(ctx context.Context, key string) (r receipt, err error) {
			at("before the call")
			var body io.Reader = strings.NewReader(order)
			if c.Point == "request half written" {
				body = io.MultiReader(strings.NewReader(order[:1]), dying{})
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Provider, body)
			if err != nil {
				return r, err
			}
			req.Header.Set("Idempotency-Key", key)
			req.Header.Set("Kill", c.Point)
			req.Header.Set("Kill-Process", strconv.Itoa(os.Getpid()))
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return r, err
			}
			defer resp.Body.Close()
			switch resp.StatusCode {
			case http.StatusOK:
				err = json.NewDecoder(resp.Body).Decode(&r)
			case http.StatusPaymentRequired:
				err = idem.Final(errors.New("declined"))
			default:
				err = errProvider
			}
			at("after the call")
			return r, err
		},
		Apply: func(ctx context.Context, tx pgx.Tx, r receipt) error {
			err := book(ctx, tx, order, r)
			at("in Apply")
			return err
		},
	}
}

// dying is the rest of a request's body.
type dying struct{}

func (dying) Read([]byte) (int, error) { die(); return 0, nil }

// book writes to the ledger, which has no constraint: a charge that is booked twice is there twice.
func book(ctx context.Context, tx pgx.Tx, order string, r receipt) error {
	_, err := tx.Exec(ctx, `INSERT INTO ledger (order_id, receipt, amount) VALUES ($1, $2, $3)`, order, r.ID, r.Amount)
	return err
}

// providerServer is the provider as an HTTP server. It outlives the processes that call it.
type providerServer struct {
	*provider
	*httptest.Server

	conns sync.Mutex
	ended map[string]bool // each connection, by the client's address: whether it is at its end
}

func newProviderServer(remembers time.Duration) *providerServer {
	p := &providerServer{provider: newProvider(remembers), ended: map[string]bool{}}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(p.serve))
	p.Config.ConnState = func(c net.Conn, state http.ConnState) {
		p.conns.Lock()
		defer p.conns.Unlock()
		p.ended[c.RemoteAddr().String()] = state == http.StateClosed
	}
	p.Start()
	return p
}

// settle waits until everything that dead processes had sent has arrived and been dealt with. Connections are accepted
// in order: once one that is made now has been, there are no others on their way.
func (p *providerServer) settle(t testing.TB) {
	t.Helper()
	last, err := net.Dial("tcp", p.Listener.Addr().String())
	require.NoError(t, err)
	require.NoError(t, last.Close())
	require.Eventually(t, func() bool {
		p.conns.Lock()
		defer p.conns.Unlock()
		return p.ended[last.LocalAddr().String()] && !slices.Contains(slices.Collect(maps.Values(p.ended)), false)
	}, 20*time.Second, time.Millisecond)
}

func (p *providerServer) serve(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // it never came
	}
	order := string(body)
	kill := func(point string) bool {
		if req.Header.Get("Kill") != point {
			return false
		}
		pid, err := strconv.Atoi(req.Header.Get("Kill-Process"))
		if err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return true
	}
	if kill("received, not charged") {
		return
	}
	if strings.HasSuffix(order, "declined") {
		w.WriteHeader(http.StatusPaymentRequired)
		return
	}
	kill("killed, then charged")
	known := len(p.look(order)) > 0
	r := p.charge(req.Header.Get("Idempotency-Key"), order, 10)
	switch {
	case kill("charged, no reply"):
	case strings.HasSuffix(order, "flaky") && !known:
		w.WriteHeader(http.StatusInternalServerError)
	default:
		_ = json.NewEncoder(w).Encode(r)
	}
}

// killed is a run of processes that are killed, against one provider.
type killed struct {
	*site
	rand     *rand.Rand
	provider *providerServer
	spec     callerSpec
	orders   []string
	last     map[string]string // the last outcome of each order
	kills    map[string]int
}

// start runs a process, and reads what became of its deliveries.
func (k *killed) start(point string, orders ...string) {
	k.Helper()
	k.spec.Point, k.spec.Orders = point, orders
	text, err := json.Marshal(k.spec)
	require.NoError(k, err)
	self, err := os.Executable()
	require.NoError(k, err)
	cmd := exec.CommandContext(k.ctx, self)
	cmd.Env = append(os.Environ(), callerEnv+"="+string(text))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err = cmd.Run()
	if point == "" {
		require.NoError(k, err, "%s", &stderr)
	} else {
		require.Error(k, err, "the process ended before it could be killed %s", point)
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		require.True(k, status.Signaled() && status.Signal() == syscall.SIGKILL, "%v: %s", err, &stderr)
		k.kills[point]++
	}
	k.provider.settle(k)
	lines, _ := readLines(k.spec.Outcomes)
	for _, l := range lines {
		order, outcome, _ := strings.Cut(l, "\t")
		k.last[order] = outcome
	}
	_ = os.Remove(k.spec.Outcomes)
	for _, o := range k.orders {
		require.LessOrEqual(k, len(k.provider.look(o)), 1, "%s was charged twice", o)
	}
}

// advance lets time pass, for the provider and for the database. No process is there to see it.
func (k *killed) advance(d time.Duration) {
	k.Helper()
	k.provider.advance(d)
	_, err := k.sound.Exec(k.ctx, `
		UPDATE processed_events
		   SET processed_at = processed_at - $1::int8 * interval '1 microsecond', lease_until = lease_until - $1::int8 * interval '1 microsecond'
		 WHERE lease_until IS NOT NULL`, d.Microseconds())
	require.NoError(k, err)
}

// open returns the orders that are not at an end, as far as their sender knows.
func (k *killed) open() (open []string) {
	for _, o := range k.orders {
		if !slices.Contains([]string{"executed", "duplicate", "final", "unknown"}, k.last[o]) {
			open = append(open, o)
		}
	}
	return open
}

// finish delivers everything until all of it is at an end.
func (k *killed) finish() {
	k.Helper()
	for range 5 {
		k.advance(callerLease + time.Second)
		if k.start("", k.open()...); len(k.open()) == 0 {
			return
		}
	}
	require.Empty(k, k.open(), "a reservation blocks for longer than its lease")
}

// reconcile settles what is open, as a person would: reserve, look at the provider, confirm or void. It returns how
// often it did which.
func (k *killed) reconcile() (confirmed, voided int) {
	k.Helper()
	list, err := idem.Once{}.Pending(k.ctx, k.sound, stripe, 1000)
	require.NoError(k, err)
	var listed, unknown []string
	for _, o := range list {
		require.Equal(k, idem.Unfinished, o.State)
		listed = append(listed, o.Key.ID())
	}
	for _, o := range k.orders {
		if k.last[o] == "unknown" {
			unknown = append(unknown, o)
		}
	}
	require.ElementsMatch(k, unknown, listed, "what is unknown is what is listed")
	for _, o := range list {
		order := o.Key.ID()
		r, out, err := idem.Once{}.Reserve(k.ctx, k.sound, o.Key, time.Minute)
		require.NoError(k, err)
		require.Equal(k, idem.Executed, out)
		if found := k.provider.look(order); len(found) == 1 {
			text, err := json.Marshal(found[0])
			require.NoError(k, err)
			require.NoError(k, pgx.BeginFunc(k.ctx, k.sound, func(tx pgx.Tx) error {
				if err := book(k.ctx, tx, order, found[0]); err != nil {
					return err
				}
				return r.Confirm(k.ctx, tx, text)
			}))
			confirmed++
		} else {
			require.NoError(k, r.Void(k.ctx, k.sound))
			voided++
		}
		delete(k.last, order)
	}
	return confirmed, voided
}

// requireEqualLedgers compares the ledger with the provider's own.
func (k *killed) requireEqualLedgers() {
	k.Helper()
	for _, o := range k.orders {
		rows, err := k.sound.Query(k.ctx, `SELECT receipt, amount FROM ledger WHERE order_id = $1`, o)
		require.NoError(k, err)
		booked, err := pgx.CollectRows(rows, pgx.RowToStructByPos[receipt])
		require.NoError(k, err)
		require.ElementsMatch(k, k.provider.look(o), booked, "%s: the provider's ledger, and ours", o)
		want := 1
		if strings.HasSuffix(o, "declined") {
			want = 0
		}
		require.Len(k, booked, want, o)
	}
}

// A process that makes calls is killed at each of their steps, again and again, against providers of three kinds. Time
// passes between one process and the next: seconds, in which leases live, hours, in which the provider remembers, and
// days.
func TestKilledCall(t *testing.T) {
	kills, least := 15, 1
	if long {
		kills, least = 167, 11
	}
	points := slices.Concat(callPoints, declinedPoints, flakyPoints)
	for _, kind := range []struct {
		name            string
		remembers, call time.Duration // how long the provider does, and how long Call believes
		unknown         bool
	}{
		{"for ever", -1, 10 * 365 * 24 * time.Hour, false},
		{"forgets", 24 * time.Hour, 23 * time.Hour, true},
		{"no keys", 0, 0, true},
	} {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			if long {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
				defer cancel()
				s.ctx = ctx
			}
			s.sql(`CREATE TABLE ledger (order_id text, receipt text, amount int)`)
			p := newProviderServer(kind.remembers)
			defer p.Close()
			k := &killed{
				site: s, rand: seeded(t), provider: p, last: map[string]string{}, kills: map[string]int{},
				spec: callerSpec{
					DSN: s.cfg.ConnString(), Provider: p.URL, Remembers: kind.call,
					Outcomes: filepath.Join(t.TempDir(), "outcomes"),
				},
			}
			begun := time.Now()
			// Each point meets each of these in turn, whatever is drawn: of those that leave an order open, some are followed
			// by more time than the provider remembers.
			passes := []time.Duration{
				0, time.Second, callerLease + time.Second, time.Hour,
				23*time.Hour - callerLease/2, 23 * time.Hour, 25 * time.Hour,
			}
			drawn := k.rand.IntN(len(passes))
			for i := range kills {
				// Each point in its turn, and after it whatever comes.
				point := points[i%len(points)]
				order := fmt.Sprintf("order %d", i)
				switch {
				case slices.Contains(declinedPoints, point):
					order += " declined"
				case slices.Contains(flakyPoints, point), !slices.Contains(callPoints[8:], point) && k.rand.IntN(8) == 0:
					order += " flaky"
				}
				again := k.open()
				k.rand.Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
				again = again[:min(len(again), k.rand.IntN(3))]
				k.orders = append(k.orders, order)
				k.start(point, append(again, order)...)
				k.advance(passes[(drawn+i+i/len(points))%len(passes)])
			}
			k.finish()
			confirmed, voided := k.reconcile()
			if !kind.unknown {
				require.Zero(t, confirmed+voided, "a provider that remembers for ever leaves nothing open")
			} else if long {
				require.Greater(t, min(confirmed, voided), 5, "settled both ways")
			} else {
				require.Positive(t, confirmed+voided)
			}
			k.finish()
			for range 2 {
				// What was voided is delivered anew, and may fail anew: "flaky" ones charge, and do not say so.
				c, v := k.reconcile()
				confirmed, voided = confirmed+c, voided+v
				k.finish()
			}
			k.requireEqualLedgers()
			t.Logf("%d kills, %d orders, %d charges; left open and settled: %d confirmed, %d voided; %v",
				kills, len(k.orders), len(p.ledger), confirmed, voided, time.Since(begun).Round(time.Second))
			for _, point := range points {
				t.Logf("%3d killed: %s", k.kills[point], point)
				require.GreaterOrEqual(t, k.kills[point], least, "%s: or this proves nothing", point)
			}
		})
	}
}
