package idem_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

type lastEvent struct{ e dedup.Event }

func (l *lastEvent) Observe(_ context.Context, e dedup.Event) { l.e = e }

// The observer is told the age of the original whichever way a duplicate is met.
func TestAgeOfTheOriginal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const age = 10 * 24 * time.Hour
	var last lastEvent
	once := idem.Once{Observer: &last}
	patient := idem.Once{Observer: &last, MaxWait: time.Minute}
	_, _, err := idem.Returning[int]{}.Run(s.ctx, s.sound, stripe.Key("done"),
		func(context.Context, pgx.Tx) (int, error) { return 7, nil })
	require.NoError(t, err)
	held, _, err := idem.Once{}.Reserve(s.ctx, s.sound, stripe.Key("failed"), time.Minute)
	require.NoError(t, err)
	require.NoError(t, held.Fail(s.ctx, s.sound, []byte("no")))
	s.sql(`UPDATE processed_events SET processed_at = now() - interval '10 days'`)

	returns := func(context.Context, pgx.Tx) (int, error) { t.Error("ran"); return 0, nil }
	call := idem.Call[int]{
		Once: once, Lease: time.Minute,
		Send: func(context.Context, string) (int, error) { t.Error("sent"); return 0, nil },
	}
	timed := func(k idem.Key) idem.Key { return k.OccurredAt(time.Now().Add(-9 * 24 * time.Hour)) }
	do := func(o idem.Once, key idem.Key) error {
		return pgx.BeginFunc(s.ctx, s.sound, func(tx pgx.Tx) error { _, err := o.Do(s.ctx, tx, key, nothing); return err })
	}
	for name, meet := range map[string]func(key idem.Key) error{
		"Do":               func(key idem.Key) error { return do(once, key) },
		"Do, MaxWait":      func(key idem.Key) error { return do(patient, key) },
		"Do, with a time":  func(key idem.Key) error { return do(once, timed(key)) },
		"Run":              func(key idem.Key) error { _, err := once.Run(s.ctx, s.sound, key, nothing); return err },
		"Run, MaxWait":     func(key idem.Key) error { _, err := patient.Run(s.ctx, s.sound, key, nothing); return err },
		"Run, with a time": func(key idem.Key) error { _, err := once.Run(s.ctx, s.sound, timed(key), nothing); return err },
		"Call":             func(key idem.Key) error { _, _, err := call.Run(s.ctx, s.sound, key); return err },
		"Returning": func(key idem.Key) error {
			_, _, err := idem.Returning[int]{Once: once}.Run(s.ctx, s.sound, key, returns)
			return err
		},
	} {
		last = lastEvent{}
		require.NoError(t, meet(stripe.Key("done")), name)
		require.Equal(t, dedup.Duplicate, last.e.Outcome, name)
		require.InDelta(t, age, last.e.Age, float64(time.Minute), name)

		last = lastEvent{}
		var final *idem.FinalError
		require.ErrorAs(t, meet(stripe.Key("failed")), &final, name)
		require.Equal(t, dedup.FinalFailure, last.e.Outcome, name)
		require.InDelta(t, age, last.e.Age, float64(time.Minute), name)
	}
	_, err = once.Run(s.ctx, s.sound, stripe.Key("new"), nothing)
	require.NoError(t, err)
	require.Zero(t, last.e.Age)
}

// What came too late to be known as a duplicate, and was refused for its own time, has used the whole window.
func TestAgesOfTheExpired(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	table := dedup.Table{Retention: 10 * 24 * time.Hour}
	ages := &dedup.Ages{}
	once := idem.Once{Table: table, Observer: ages}
	near, late := idem.Scope{Source: "near", Operation: "o"}, idem.Scope{Source: "late", Operation: "o"}
	for range 2 {
		_, err := once.Run(s.ctx, s.sound, near.Key("1"), nothing)
		require.NoError(t, err)
		s.sql(`UPDATE processed_events SET processed_at = now() - interval '9 days'`)
	}
	for _, id := range []string{"1", "2", "3"} {
		_, err := once.Run(s.ctx, s.sound, late.Key(id).OccurredAt(time.Now().Add(-11*24*time.Hour)), nothing)
		require.ErrorIs(t, err, idem.ErrExpired)
	}
	all := ages.Report(table)
	require.Len(t, all, 2)
	require.Equal(t, []string{"late", "near"}, []string{all[0].Source, all[1].Source}, "what has used the most goes first")
	require.EqualValues(t, 3, all[0].Expired)
	require.Zero(t, all[0].Duplicates)
	require.InDelta(t, 1, all[0].Share, 0)
	require.Contains(t, all[0].String(), "; 3 later than that, and refused")
	require.InDelta(t, 0.9, all[1].Share, 0.001)
	require.NotContains(t, all[1].String(), "refused")
}
