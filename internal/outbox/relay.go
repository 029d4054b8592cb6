package outbox

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
)

// Result is what became of a call of the publisher. Each has an error for each event, nil where it was published; it
// is nil where nothing is known of single events, and then Err is what became of all of them.
type Result struct {
	Each []error
	Err  error
}

// Relay is the settings of a relay, all of them set.
type Relay struct {
	SQL     SQL
	Publish func(context.Context, []Event) Result

	Batch       int
	MaxBytes    int
	Lease       time.Duration
	MaxAttempts int
	MinRetry    time.Duration
	MaxRetry    time.Duration
}

// Stats is what a step, or a relay, has done.
type Stats struct {
	Published int64 // and deleted
	Failed    int64 // attempts that failed
	Parked    int64 // events that had their last attempt
	Again     int64 // published, or perhaps, and not deleted: they will be published again
}

// Add adds up.
func (s *Stats) Add(o Stats) {
	s.Published += o.Published
	s.Failed += o.Failed
	s.Parked += o.Parked
	s.Again += o.Again
}

// Worker relays one lane at a time. It is not safe for concurrent use.
type Worker struct {
	Relay
	conn pg.Conn
	db   pg.DB
	low  lowMarks

	failedLast bool // at the last claim

	fails [Lanes]int // how often in a row nothing of the lane was published
	size  [Lanes]int // of the next batch
}

// New returns a worker. conn runs single statements, db begins transactions.
func (r Relay) New(conn pg.Conn, db pg.DB) *Worker {
	w := &Worker{Relay: r, conn: conn, db: db}
	w.low.reset()
	for lane := range w.size {
		w.size[lane] = r.Batch
	}
	return w
}

const (
	minRest = 100 * time.Millisecond
	maxRest = 30 * time.Second

	// publishShare is the part of a lease that the publisher may take, in percent. The rest is for the answer.
	publishShare = 75
)

// row is an event as it was read.
type row struct {
	Event
	seq    int64
	failed bool  // of the events that failed before
	behind bool  // an event of its key has failed
	bad    error // it cannot be published, and somebody else has written it
}

// Step leases a lane, publishes a batch of it, and ends the lease. found is false where no lane had anything to do.
// published is what the publisher said where it failed; err is the database's.
func (w *Worker) Step(ctx context.Context) (stats Stats, found bool, published, err error) {
	begun := time.Now()
	lane, token, err := w.claim(ctx)
	if err != nil || token == 0 {
		return stats, false, nil, err
	}
	if ctx.Err() != nil {
		return stats, false, nil, w.rest(ctx, lane, token, 0)
	}
	rows, err := w.read(ctx, lane, token)
	if err != nil {
		_ = w.rest(ctx, lane, token, 0)
		return stats, true, nil, err
	}
	if len(rows) == 0 {
		// Its last owner has emptied it. It must not lie still for a lease.
		return stats, false, nil, w.rest(ctx, lane, token, 0)
	}
	limit := begun.Add(w.Lease * publishShare / 100)
	o := w.publish(ctx, limit, rows, 1<<min(w.fails[lane], 20))
	stats, err = w.settle(ctx, lane, token, o)
	if err != nil {
		stats = Stats{Again: int64(len(o.published))}
	}
	return stats, true, o.err, err
}

// claim returns no token where nothing is due. It waits for the answer though ctx ends: a lane that was leased
// without anybody's knowing would lie still for a lease.
//
// Every other time what failed before comes last, for it is always due again, and could keep a relay from all else.
func (w *Worker) claim(ctx context.Context) (lane, token int64, err error) {
	ctx, cancel := outliving(ctx)
	defer cancel()
	token = rand.Int64N(1<<62) + 1
	w.failedLast = !w.failedLast
	rank := int64(0)
	if w.failedLast {
		rank = math.MaxInt64
	}
	var xid int64
	s := &pg.Stmt{
		SQL: w.SQL.claim, Args: []any{token, w.Lease.Microseconds(), w.low.text(), rank},
		Dest: []any{&lane, &xid, new(string)},
	}
	if err := w.conn.Send(ctx, s); err != nil {
		return 0, 0, fmt.Errorf("claim a lane: %w", err)
	}
	if s.Rows == 0 {
		return 0, 0, nil
	}
	w.low.assigned(xid)
	return lane, token, nil
}

func (w *Worker) read(ctx context.Context, lane, token int64) ([]row, error) {
	var rows []row
	var xmin int64
	first := int64(-1)
	args := []any{lane, failedLane(lane), token, w.low.mark[lane], int64(w.size[lane]), int64(w.MaxBytes)}
	err := w.conn.Query(ctx, w.SQL.read, args, func(scan func(...any) error) error {
		var r row
		var at, attempts, in int64
		var headers string
		err := scan(&in, &r.seq, &r.ID, &r.Topic, &r.Key, &headers, &r.Payload, &at, &attempts, &r.behind, &xmin)
		if err != nil {
			return err
		}
		r.Headers, r.bad = headersOf(headers)
		r.AppendedAt, r.Attempt, r.failed = time.UnixMicro(at), int(attempts)+1, in < 0
		if !r.failed && (first < 0 || r.seq < first) {
			first = r.seq
		}
		rows = append(rows, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read a lane: %w", err)
	}
	if first >= 0 {
		w.low.read(lane, first, xmin)
	}
	// UNION ALL promises no order.
	slices.SortFunc(rows, func(a, b row) int {
		if a.failed != b.failed {
			return map[bool]int{true: -1, false: 1}[a.failed]
		}
		return int(min(1, max(-1, a.seq-b.seq)))
	})
	return rows, nil
}

// rest ends a lease, and keeps the lane still for a while. It works with a done context.
func (w *Worker) rest(ctx context.Context, lane, token int64, d time.Duration) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	s := &pg.Stmt{SQL: w.SQL.rest, Args: []any{lane, token, d.Microseconds()}, Dest: restDest()}
	return w.conn.Send(ctx, s)
}

func restDest() []any { return []any{new(int64), new(string)} }

// Reset forgets what the worker remembers, after an error of the database's: the next connection may lead to another
// server.
func (w *Worker) Reset() { w.low.reset() }

// backoff returns how long an event waits after so many attempts, give or take a fifth.
func (w *Worker) backoff(attempts int) time.Duration {
	d := w.MinRetry
	for range attempts - 1 {
		if d = d * 2; d >= w.MaxRetry {
			break
		}
	}
	d = min(d, w.MaxRetry)
	return d - d/5 + rand.N(d*2/5+1)
}

// restAfter returns how long a lane is left alone after nothing of it could be published, so many times in a row.
func restAfter(fails int) time.Duration {
	d := minRest
	for range fails - 1 {
		if d = d * 2; d >= maxRest {
			return maxRest
		}
	}
	return d
}

func seqs(rows []row) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, r := range rows {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(r.seq, 10))
	}
	b.WriteByte('}')
	return b.String()
}

// outliving returns a context that ends a second after ctx.
func outliving(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, cancel) })
	return longer, func() { stop(); cancel() }
}

// cleanupTime bounds what is done on behalf of a context that is done already.
const cleanupTime = 5 * time.Second

func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
}
