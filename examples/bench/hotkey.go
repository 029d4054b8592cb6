package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgonce/pgonce/dedup"
	"github.com/pgonce/pgonce/idem"
)

// hotFigure is what 64 deliveries of one key cost, medians of the rounds.
type hotFigure struct {
	name       string
	peak       int           // connections held at once
	held       float64       // connections times seconds, in all
	first      time.Duration // until all had a first answer, ErrInProgress included
	last       time.Duration // until all were acknowledged
	inProgress int           // answers "in progress", of all rounds
	effects    int           // of all rounds
	rounds     int
}

const (
	hotDeliveries = 64
	hotWork       = 5 * time.Millisecond
	hotPause      = 10 * time.Millisecond // before a delivery that was in progress comes again
)

// hotKey delivers one new key 64 times at once, again and again. The effect takes 5 ms.
func (b *bench) hotKey(ctx context.Context, p *page) error {
	pool, err := b.pool(ctx, hotDeliveries, nil)
	if err != nil {
		return err
	}
	defer pool.Close()
	run := func(maxWait time.Duration) func(context.Context, message) (answer, error) {
		once := idem.Once{Table: dedup.Table{Name: "bench_run"}, MaxWait: maxWait}
		return func(ctx context.Context, m message) (answer, error) {
			out, err := once.Run(ctx, pool, scope.Key(m.id), m.effect)
			return told(out), err
		}
	}
	ways := []struct {
		name    string
		deliver func(context.Context, message) (answer, error)
	}{
		{"by hand", func(ctx context.Context, m message) (answer, error) { return byHand(ctx, pool, m) }},
		{"by hand, again", func(ctx context.Context, m message) (answer, error) { return byHand(ctx, pool, m) }},
		{"`Run`", run(0)},
		{"`Run`, MaxWait 1 ms", run(time.Millisecond)},
		{"`Run`, MaxWait 20 ms", run(20 * time.Millisecond)},
	}
	rounds := make([][]hotFigure, len(ways))
	for round := range b.cfg.rounds + 1 { // the first opens connections
		for n := range ways {
			i := (n + round) % len(ways)
			f, err := hotRound(ctx, pool, ways[i].deliver)
			if err != nil {
				return fmt.Errorf("%s: %w", ways[i].name, err)
			}
			if round > 0 {
				rounds[i] = append(rounds[i], f)
			}
		}
	}
	for i, w := range ways {
		f := hotFigure{name: w.name, rounds: len(rounds[i])}
		f.peak = int(medianBy(rounds[i], func(f hotFigure) float64 { return float64(f.peak) }))
		f.held = medianBy(rounds[i], func(f hotFigure) float64 { return f.held })
		f.first = time.Duration(medianBy(rounds[i], func(f hotFigure) float64 { return float64(f.first) }))
		f.last = time.Duration(medianBy(rounds[i], func(f hotFigure) float64 { return float64(f.last) }))
		for _, r := range rounds[i] {
			f.inProgress += r.inProgress
			f.effects += r.effects
		}
		p.hot = append(p.hot, f)
	}
	return nil
}

func medianBy(all []hotFigure, get func(hotFigure) float64) float64 {
	values := make([]float64, len(all))
	for i, f := range all {
		values[i] = get(f)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func hotRound(
	ctx context.Context, pool *pgxpool.Pool, deliver func(context.Context, message) (answer, error),
) (f hotFigure, err error) {
	m := message{id: ascending(), between: func(pgx.Tx) { time.Sleep(hotWork) }}
	var mu sync.Mutex
	var wg sync.WaitGroup
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(200 * time.Microsecond)
		defer tick.Stop()
		for before := time.Now(); ; {
			select {
			case <-stop:
				return
			case now := <-tick.C:
				n := int(pool.Stat().AcquiredConns())
				f.peak = max(f.peak, n)
				f.held += float64(n) * now.Sub(before).Seconds()
				before = now
			}
		}
	}()
	begun := time.Now()
	for range hotDeliveries {
		wg.Go(func() {
			for try := 0; ; try++ {
				_, e := deliver(ctx, m)
				mu.Lock()
				if try == 0 {
					f.first = max(f.first, time.Since(begun))
				}
				again := errors.Is(e, idem.ErrInProgress)
				switch {
				case again:
					f.inProgress++
				case e != nil:
					err = e
				default:
					f.last = max(f.last, time.Since(begun))
				}
				mu.Unlock()
				if !again {
					return
				}
				time.Sleep(hotPause)
			}
		})
	}
	wg.Wait()
	close(stop)
	<-stopped
	if err != nil {
		return f, err
	}
	return f, pool.QueryRow(ctx, `SELECT count(*) FROM bench_effects WHERE id = $1::text`, m.id).Scan(&f.effects)
}
