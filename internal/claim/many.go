package claim

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgonce/pgonce/internal/pg"
)

// Answer is what became of one key of a batch.
type Answer struct {
	Result
	Err error // of this key alone
}

// DoMany claims the keys of all in the caller's transaction, in one statement, and runs fn with the places of those
// whose row is new, where there are any. A nil claim is left out, and its Answer is left zero. All claims are of one
// table, and of one once.
//
// An error is of the whole batch, as that of Do, and there are no answers then.
func DoMany(
	ctx context.Context, tx pg.Tx, all []*Claim, fn func(ctx context.Context, tx pg.Tx, fresh []int) error,
) ([]Answer, error) {
	b := newBatch(all)
	err := errPanic
	defer func() { b.tell(ctx, err) }()
	if err = b.do(ctx, tx, fn); err != nil {
		return nil, err
	}
	return b.answers, nil
}

// batch is one call of DoMany.
type batch struct {
	all     []*Claim
	answers []Answer

	names  map[batchKey]int  // the place of the claim that stands for each row: the first, as a rule
	met    map[batchKey]*met // the rows that were there
	sorted []int             // those places, in the order of the rows
	open   []int             // of sorted: the rows that have no answer yet

	begun, claimed time.Time
	token          *int64
}

// rowName names a row, but for its time.
type rowName struct{ key, operation, source string }

func (c *Claim) rowName() rowName { return rowName{c.Key, c.Operation, c.Source} }

// batchKey names a row among those of a batch.
type batchKey struct {
	rowName
	day int64 // of layout Weekly: the first one of the week, from 1970 on
}

func (c *Claim) batchKey() batchKey {
	k := batchKey{rowName: c.rowName()}
	if c.SQL.weekly {
		const micros = 24 * 60 * 60 * 1_000_000
		k.day = c.At / micros
		if c.At%micros < 0 {
			k.day--
		}
		k.day -= ((k.day+3)%7 + 7) % 7 // 1970-01-01 was a Thursday
	}
	return k
}

func newBatch(all []*Claim) *batch {
	b := &batch{
		all: all, answers: make([]Answer, len(all)),
		names: make(map[batchKey]int, len(all)), met: map[batchKey]*met{}, begun: time.Now(),
	}
	for i, c := range all {
		if c == nil {
			continue
		}
		if _, again := b.names[c.batchKey()]; !again {
			b.names[c.batchKey()] = i
			b.sorted = append(b.sorted, i)
		}
	}
	b.sort(b.sorted)
	b.open = b.sorted
	return b
}

// sort puts places into the order of the rows.
func (b *batch) sort(places []int) {
	slices.SortFunc(places, func(i, j int) int {
		x, y := b.all[i].batchKey(), b.all[j].batchKey()
		return cmp.Or(strings.Compare(x.key, y.key), strings.Compare(x.operation, y.operation),
			strings.Compare(x.source, y.source), cmp.Compare(x.day, y.day))
	})
}

// first is the claim that stands for the batch.
func (b *batch) first() *Claim { return b.all[b.sorted[0]] }

func (b *batch) do(ctx context.Context, tx pg.Tx, fn func(ctx context.Context, tx pg.Tx, fresh []int) error) error {
	if len(b.sorted) == 0 {
		return nil
	}
	running := &running{batch: make(map[rowName]*Claim, len(b.sorted))}
	for _, i := range b.sorted {
		if err := b.all[i].outside(ctx, StageClaim); err != nil {
			return err
		}
	}
	fresh, err := b.claim(ctx, tx)
	b.claimed = time.Now()
	if f, ok := err.(*Failure); ok && (f.unclear || len(fresh) > 0) {
		// Rows of an earlier statement would be committed without their effect.
		f.unsent = false
		_ = tx.Fail(ctx)
	}
	if err != nil {
		return err
	}
	for _, i := range fresh {
		running.batch[b.all[i].rowName()] = b.all[i]
	}
	if len(fresh) > 0 {
		slices.Sort(fresh)
		err := effect(ctx, tx, *b.token, func(ctx context.Context, tx pg.Tx) error {
			return running.guarded(ctx, tx,
				func(ctx context.Context, tx pg.Tx) error { return fn(ctx, tx, slices.Clone(fresh)) })
		}, tx.Fail)
		if err != nil {
			return err
		}
	}
	b.repeat()
	return nil
}

// insert sends the claim, limited to left where there is a MaxWait, and returns the places of the rows that it has
// written; see Claim.insert.
func (b *batch) insert(ctx context.Context, tx pg.Tx, left time.Duration) (found []int, err error) {
	c := b.first()
	if c.MaxWait <= 0 {
		if found, err = b.send(ctx, tx); err != nil {
			return nil, c.sent(StageClaim, err, &pg.Stmt{})
		}
		return found, nil
	}
	save := &pg.Stmt{SQL: savepointSQL}
	found, err = b.insertWithin(ctx, tx, newLook(left), save)
	if err == errTimeUp {
		found, err = b.insertWithin(ctx, tx, newLastLook(), save)
	}
	if errors.Is(err, ErrInProgress) {
		if err := tx.Send(ctx, &pg.Stmt{SQL: releaseSQL}); err != nil {
			return nil, c.failed(StageClaim, err)
		}
	}
	return found, err
}

// insertWithin is insert within a look, behind save, unless that is done already. After errTimeUp and ErrInProgress
// tx is as it was there.
func (b *batch) insertWithin(ctx context.Context, tx pg.Tx, l *look, save *pg.Stmt) (found []int, err error) {
	c, begun, claimed := b.first(), time.Now(), false
	before := l.before(c)
	if !l.last {
		before = append([]*pg.Stmt{save}, before...)
	}
	if err = tx.Send(ctx, before...); err == nil {
		found, err = b.send(ctx, tx)
	}
	if err == nil {
		claimed = true
		err = tx.Send(ctx, append(l.after(), &pg.Stmt{SQL: releaseSQL})...)
	}
	if err == nil {
		return found, nil
	}
	end := l.ended(StageClaim, err, begun)
	if end == nil || !save.Done || claimed {
		return nil, l.failure(c.sent(StageClaim, err, save), c)
	}
	if err := tx.Send(ctx, &pg.Stmt{SQL: rollbackSQL}); err != nil {
		return nil, c.failed(StageClaim, err)
	}
	return nil, end
}

// send sends the claim.
func (b *batch) send(ctx context.Context, tx pg.Tx) (found []int, err error) {
	c, stmt := b.first(), stmtInsertMany
	if tx.NeedsMark() {
		stmt = stmtInsertManyMarked
	}
	args := append(b.keyArrays(), b.hashes(), b.times(), c.Retention.Microseconds(), c.Skew.Microseconds(),
		newToken(tx.NeedsMark()))
	err = tx.Query(ctx, c.SQL.text[stmt], args, func(scan func(...any) error) error {
		var k batchKey
		var token *int64
		if err := scan(&k.source, &k.operation, &k.key, &token, &k.day); err != nil {
			return err
		}
		i, ok := b.names[k]
		if token == nil || !ok {
			return errNoToken
		}
		b.token = token
		found = append(found, i)
		return nil
	})
	return found, err
}

// look reads the rows of the open keys, and says what each means. Where there is none, the key's time may say why.
func (b *batch) look(ctx context.Context, tx pg.Tx) error {
	c := b.first()
	args := b.keyArrays()
	if c.SQL.weekly {
		args = append(args, b.times())
	}
	err := tx.Query(ctx, c.SQL.text[stmtReadMany], args, func(scan func(...any) error) error {
		var n int64
		m := &met{read: &pg.Stmt{Rows: 1}}
		if err := scan(append([]any{&n}, m.record.dest()...)...); err != nil {
			return err
		}
		i := b.open[n-1]
		b.met[b.all[i].batchKey()] = m
		b.answers[i] = b.all[i].answer(m)
		return nil
	})
	if err != nil {
		return c.failed(StageConfirm, err)
	}
	b.unanswered()
	if !slices.ContainsFunc(b.open, func(i int) bool { return b.all[i].Timed }) {
		return nil
	}
	outside, err := b.window(ctx, tx)
	for n, f := range outside {
		b.answers[b.open[n]].Err = f
	}
	return err
}

// tell tells of each key. err is the batch's.
func (b *batch) tell(ctx context.Context, err error) {
	end := time.Now()
	for i, c := range b.all {
		if c == nil || c.Tell == nil {
			continue
		}
		res := b.answers[i].Result
		if err != nil {
			res = Result{}
		}
		if res.Waited = end.Sub(b.begun); !b.claimed.IsZero() {
			res.Waited = b.claimed.Sub(b.begun)
			if res.Outcome == Executed {
				res.Held = end.Sub(b.claimed)
			}
		}
		c.Tell(ctx, res, cmp.Or(err, b.answers[i].Err))
	}
}

// keyArrays are the columns that name the open keys, as arrays.
func (b *batch) keyArrays() []any {
	return []any{
		array(b.open, func(i int) string { return quoteElement(b.all[i].Source) }),
		array(b.open, func(i int) string { return quoteElement(b.all[i].Operation) }),
		array(b.open, func(i int) string { return quoteElement(b.all[i].Key) }),
	}
}

func (b *batch) hashes() string {
	return array(b.open, func(i int) string {
		if b.all[i].PayloadHash == nil {
			return "NULL"
		}
		return `"\\x` + hex.EncodeToString(b.all[i].PayloadHash) + `"`
	})
}

func (b *batch) times() string {
	return array(b.open, func(i int) string {
		if !b.all[i].Timed {
			return "NULL"
		}
		return strconv.FormatInt(b.all[i].At, 10)
	})
}

// array writes an array as the server reads it from text. As text it is one parameter of every driver and mode.
func array(places []int, element func(int) string) string {
	var s strings.Builder
	s.WriteByte('{')
	for n, i := range places {
		if n > 0 {
			s.WriteByte(',')
		}
		s.WriteString(element(i))
	}
	s.WriteByte('}')
	return s.String()
}

func quoteElement(s string) string {
	if strings.ContainsAny(s, `\"`) {
		s = strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), `"`, `\"`)
	}
	return `"` + s + `"`
}
