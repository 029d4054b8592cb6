package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// way is one of the ways to do the same work.
type way struct {
	name string
	per  int // messages, or rows, that one operation handles
	do   func(ctx context.Context, db *pgxpool.Pool) error
}

// comparison holds ways against the first of them.
type comparison struct {
	title, about string
	ways         []way
}

// condition is what all ways of a comparison are measured under.
type condition struct {
	name    string
	workers int
	db      *pgxpool.Pool
}

// figure is what was measured of one way under one condition.
type figure struct {
	operations int
	p50, p99   time.Duration // of an operation
	rate       float64       // messages a second, of all workers together
	ratio      float64       // how many times as fast as the first way a message is done, by the medians
}

// result is what was measured of a comparison: a row for each way, with a figure for each condition.
type result struct {
	comparison
	conditions []string
	figures    [][]figure
	control    []float64 // for each condition how far the first way lies from itself
}

const (
	warmRounds = 3 // that do not count
	fifths     = 5 // parts of a run that the control is looked for in
)

// under measures a comparison. The ways take turns, in an order that chance makes anew each time, so that what
// else the machine does falls on all ways alike. A turn is one operation; of several workers, who all do the
// same at once, it is a few of each. The first way takes part twice: the second is the control.
func (c comparison) under(
	ctx context.Context, cond condition, each time.Duration, least int,
) ([]figure, float64, error) {
	ways := append(slices.Clone(c.ways), c.ways[0])
	took := make([][][]time.Duration, cond.workers) // by worker, way and operation
	for w := range took {
		took[w] = make([][]time.Duration, len(ways))
	}
	spent := make([]time.Duration, len(ways))
	warm := min(warmRounds, least)
	begun := time.Now()
	for round := 0; round < warm+least || time.Since(begun) < each; round++ {
		if round == warm {
			begun = time.Now()
		}
		for _, i := range rand.Perm(len(ways)) {
			times, d, err := turn(ctx, cond, ways[i])
			if err != nil {
				return nil, 0, fmt.Errorf("%s: %s, %s: %w", c.title, ways[i].name, cond.name, err)
			}
			if round >= warm {
				spent[i] += d
				for w := range times {
					took[w][i] = append(took[w][i], times[w]...)
				}
			}
		}
	}
	figures := make([]figure, len(c.ways))
	reference := gather(took, 0, 0, 1)
	for i, way := range c.ways {
		all := gather(took, i, 0, 1)
		figures[i] = figure{
			operations: len(all), p50: at(all, 0.50), p99: at(all, 0.99), rate: float64(len(all)*way.per) / spent[i].Seconds(),
			ratio: float64(at(reference, 0.50)) / float64(c.ways[0].per) * float64(way.per) / float64(at(all, 0.50)),
		}
	}
	return figures, controlOf(took), nil
}

// turn has the workers do operations of one way, and returns the times of each worker's, and the time of it all.
func turn(ctx context.Context, cond condition, w way) (took [][]time.Duration, all time.Duration, err error) {
	operations := 1
	if cond.workers > 1 && w.per == 1 {
		operations = 10 // so that most of the turn has all workers busy
	}
	took = make([][]time.Duration, cond.workers)
	errs := make([]error, cond.workers)
	work := func(n int) {
		for range operations {
			start := time.Now()
			if errs[n] = w.do(ctx, cond.db); errs[n] != nil {
				return
			}
			took[n] = append(took[n], time.Since(start))
		}
	}
	begun := time.Now()
	var wg sync.WaitGroup
	for n := 1; n < cond.workers; n++ {
		wg.Go(func() { work(n) })
	}
	work(0)
	wg.Wait()
	return took, time.Since(begun), errors.Join(errs...)
}

// controlOf compares the first way with itself, in parts of the run, and returns the largest difference: 0.03 is
// 3 %.
func controlOf(took [][][]time.Duration) float64 {
	last, largest := len(took[0])-1, 0.0
	for n := range fifths {
		a := gather(took, 0, float64(n)/fifths, float64(n+1)/fifths)
		b := gather(took, last, float64(n)/fifths, float64(n+1)/fifths)
		if len(a) == 0 || len(b) == 0 {
			continue
		}
		largest = max(largest, math.Abs(float64(at(a, 0.5))/float64(at(b, 0.5))-1))
	}
	return largest
}

// gather returns the times of one way, of all workers, from one part of the run to another, sorted.
func gather(took [][][]time.Duration, way int, from, to float64) []time.Duration {
	var all []time.Duration
	for _, worker := range took {
		t := worker[way]
		all = append(all, t[int(from*float64(len(t))):int(to*float64(len(t)))]...)
	}
	slices.Sort(all)
	return all
}

// at returns a percentile of sorted times.
func at(sorted []time.Duration, part float64) time.Duration {
	return sorted[min(len(sorted)-1, int(part*float64(len(sorted))))]
}

func (b *bench) compare(ctx context.Context, p *page) error {
	conditions := []condition{{"1 worker", 1, b.one}, {"8 workers", workers, b.many}, {"1 worker, link of 1 ms", 1, b.far}}
	all, err := b.comparisons(ctx)
	if err != nil {
		return err
	}
	for _, c := range all {
		r := result{comparison: c, figures: make([][]figure, len(c.ways))}
		for _, cond := range conditions {
			b.say("%s, %s", c.title, cond.name)
			figures, control, err := c.under(ctx, cond, b.cfg.each, b.cfg.least)
			if err != nil {
				return err
			}
			r.conditions, r.control = append(r.conditions, cond.name), append(r.control, control)
			for i := range figures {
				r.figures[i] = append(r.figures[i], figures[i])
			}
		}
		p.results = append(p.results, r)
	}
	return nil
}
