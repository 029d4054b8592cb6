package front

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/internal/claim"
)

// What is exported of Facts would be exported of idem.Key, which embeds it.
func TestFactsAreHidden(t *testing.T) {
	t.Parallel()
	typ := reflect.TypeOf(Facts{})
	require.Zero(t, typ.NumMethod())
	require.Zero(t, reflect.PointerTo(typ).NumMethod())
	for i := range typ.NumField() {
		require.False(t, typ.Field(i).IsExported(), typ.Field(i).Name)
	}
	require.True(t, typ.Comparable())
}

func TestClaim(t *testing.T) {
	t.Parallel()
	c, err := Settings{}.Claim(Named(Name{"s", "o", "k"}))
	require.NoError(t, err)
	require.Equal(t, []any{"s", "o", "k", "processed_events"}, []any{c.Source, c.Operation, c.Key, c.SQL.Table()})
	require.Nil(t, c.PayloadHash)
	require.False(t, c.Timed)
	require.Equal(t, 10, c.Tries)
	require.Equal(t, dedup.DefaultRetention, c.Retention)
	require.Zero(t, c.MaxWait)

	at := time.UnixMicro(1_700_000_000_000_001)
	c, err = Settings{dedup.Table{Name: "a.b", Retention: time.Hour}, time.Second, 3, nil, nil}.
		Claim(WithPayload(WithTime(Named(Name{"s", "o", "k"}), at), []byte("body")))
	require.NoError(t, err)
	require.Len(t, c.PayloadHash, 32)
	require.True(t, c.Timed)
	require.Equal(t, at.UnixMicro(), c.At)
	require.Equal(t, []any{"a.b", 3, time.Hour, time.Second}, []any{c.SQL.Table(), c.Tries, c.Retention, c.MaxWait})

	for _, table := range []dedup.Table{{Name: "a.b.c"}, {Layout: 99}, {Retention: -1}} {
		_, err = Settings{Table: table}.Claim(Named(Name{"s", "o", "k"}))
		var f *claim.Failure
		require.ErrorAs(t, err, &f)
		require.Equal(t, claim.StageTable, f.Stage)
	}
}

type recorder struct{ events []dedup.Event }

func (r *recorder) Observe(_ context.Context, e dedup.Event) { r.events = append(r.events, e) }

func TestObserved(t *testing.T) {
	t.Parallel()
	observed := func(o dedup.Observer) *claim.Claim {
		c, err := Settings{
			Observer:  o,
			Translate: func(_ Name, err error) error { return translated{err} },
		}.Claim(Named(Name{"s", "o", "k"}))
		require.NoError(t, err)
		return c
	}
	errFn := errors.New("fn")
	for _, tc := range []struct {
		res  claim.Result
		err  error
		want dedup.Outcome
	}{
		{claim.Result{Outcome: claim.Executed}, nil, dedup.Executed},
		{claim.Result{Outcome: claim.Duplicate}, nil, dedup.Duplicate},
		{claim.Result{}, errFn, dedup.Failed},
		{claim.Result{}, claim.ErrInProgress, dedup.Failed}, // fn's own: another key's
		{claim.Result{}, &claim.Failure{Stage: "claim", Err: errFn}, dedup.Failed},
		{claim.Result{}, &claim.Failure{Stage: "claim", Err: claim.ErrInProgress}, dedup.InProgress},
		{claim.Result{}, &claim.Failure{Stage: "claim", Err: claim.ErrPayloadMismatch}, dedup.PayloadMismatch},
		{claim.Result{}, &claim.Failure{Stage: "claim", Err: claim.ErrExpired}, dedup.Expired},
		{claim.Result{}, &claim.Failure{Stage: "claim", Err: claim.ErrUnfinished}, dedup.Unfinished},
		{claim.Result{}, &claim.Failure{Stage: "claim", Err: &claim.Final{}}, dedup.FinalFailure},
		{claim.Result{}, &claim.Failure{Stage: "commit", Err: claim.ErrInProgress, CommitUnknown: true}, dedup.Unknown},
	} {
		r := &recorder{}
		c := observed(r)
		res, err := c.Told(t.Context(), func() (claim.Result, error) { return tc.res, tc.err })
		require.Equal(t, tc.res.Outcome, res.Outcome)
		require.Equal(t, tc.err, err)
		want := dedup.Event{Table: "processed_events", Source: "s", Operation: "o", Outcome: tc.want}
		if tc.err != nil {
			want.Err = translated{tc.err}
		}
		if f, ok := tc.err.(*claim.Failure); ok {
			want.Stage = string(f.Stage)
		}
		require.Equal(t, []dedup.Event{want}, r.events)
	}

	res, err := observed(nil).Told(t.Context(),
		func() (claim.Result, error) { return claim.Result{Outcome: claim.Executed}, nil })
	require.NoError(t, err)
	require.Equal(t, claim.Executed, res.Outcome)

	r := &recorder{}
	require.Panics(t, func() {
		_, _ = observed(r).Told(t.Context(), func() (claim.Result, error) { panic(errFn) })
	})
	require.Len(t, r.events, 1)
	require.Equal(t, dedup.Failed, r.events[0].Outcome)
	require.Error(t, r.events[0].Err)

	r = &recorder{}
	require.Equal(t, errFn, observed(r).Refused(t.Context(), errFn))
	require.Len(t, r.events, 1)
	require.Equal(t, dedup.Failed, r.events[0].Outcome)
}

type translated struct{ error }
