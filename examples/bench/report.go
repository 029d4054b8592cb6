package main

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// page is all that was measured.
type page struct {
	date         time.Time
	about        []string
	results      []result
	counts       []count
	queues       []queueFigure
	queueControl float64
	hot          []hotFigure
	loads        []loadFigure
}

// wrong returns an error where one of pgonce's own counts is not what is promised.
func (p page) wrong() (err error) {
	for _, c := range p.counts {
		if strings.Contains(c.rival, "idem.") && c.lost+c.doubled+c.wrong > 0 {
			err = errors.Join(err, fmt.Errorf("%s, %s: %d lost, %d doubled, %d wrong answers",
				c.rival, c.isolation, c.lost, c.doubled, c.wrong))
		}
	}
	for _, q := range p.queues {
		if q.lost+q.doubled > 0 {
			err = errors.Join(err, fmt.Errorf("%s: %d lost, %d doubled", q.name, q.lost, q.doubled))
		}
	}
	for _, h := range p.hot {
		if h.effects != h.rounds {
			err = errors.Join(err, fmt.Errorf("%s: %d effects of %d hot keys", h.name, h.effects, h.rounds))
		}
	}
	return err
}

func (p page) markdown() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Measured on %s\n", p.date.Format("2006-01-02 15:04 UTC"))
	for _, s := range p.about {
		line("- %s", s)
	}
	if len(p.results) > 0 {
		line("\n## Time\n")
		line("The ways of a table took turns: one operation each, of 8 workers ten each. " +
			"A factor is how many times as fast as the first way a message was done, " +
			"by the medians of all operations; then come the median and the " +
			"99th percentile of an operation, and messages a second of all workers together, " +
			"in the turns of this way. The first way was measured twice: " +
			"the control is how far it lay from itself, in the worst fifth of the run. " +
			"A factor inside of it is written as `=`.")
	}
	for _, r := range p.results {
		line("\n### %s\n\n%s\n", r.title, r.about)
		line("| | %s |", strings.Join(r.conditions, " | "))
		line("|---|%s", strings.Repeat("---|", len(r.conditions)))
		for i, w := range r.ways {
			cells := make([]string, len(r.conditions))
			for n, f := range r.figures[i] {
				factor := fmt.Sprintf("**%s** ", times(f.ratio))
				switch {
				case i == 0:
					factor = ""
				case inside(f.ratio, r.control[n]):
					factor = "**=** "
				}
				cells[n] = fmt.Sprintf("%s%v, p99 %v, %.0f/s", factor, rounded(f.p50), rounded(f.p99), f.rate)
			}
			line("| %s | %s |", w.name, strings.Join(cells, " | "))
		}
		cells := make([]string, len(r.conditions))
		for n := range cells {
			cells[n] = fmt.Sprintf("± %.1f %%, %d operations each", 100*r.control[n], r.figures[0][n].operations)
		}
		line("| control | %s |", strings.Join(cells, " | "))
	}
	p.writeCounts(line)
	p.writeQueues(line)
	p.writeHot(line)
	p.writeLoads(line)
	return b.String()
}

func (p page) writeCounts(line func(string, ...any)) {
	if len(p.counts) == 0 {
		return
	}
	c := p.counts[0]
	line("\n## Counted\n\n%d messages for each way, each delivered %d times by %d workers at once. "+
		"At one in %d the process that first came to the "+
		"effect died there: connection cut, no code of it ran on. What got no answer, or an error, was delivered again. "+
		"Lost: no effect in the end. Doubled: more than one. "+
		"Wrong: an answer that acknowledges, while no effect is committed. "+
		"Failed: deliveries that got an error. WAL: what a duplicate writes, in bytes.\n",
		c.messages, copies, workers, crashEvery)
	line("| | isolation | lost | doubled | wrong | failed | crashes | WAL | how |\n|---|---|---|---|---|---|---|---|---|")
	for _, c := range p.counts {
		line("| %s | %s | %d | %d | %d | %d | %d | %d | %s |",
			c.rival, c.isolation, c.lost, c.doubled, c.wrong, c.failed, c.crashes, c.wal, c.says)
	}
}

func (p page) writeQueues(line func(string, ...any)) {
	if len(p.queues) == 0 {
		return
	}
	line("\n## From the delivery to the effect\n\nEach message delivered twice, in an order by chance, "+
		"by %d workers at once; the systems took turns. "+
		"The rate is deliveries a second until the last effect was committed. Times as long: the median over the turns; "+
		"the control lay within ± %.1f %%. The times are from the first delivery of a message to its effect. "+
		"The systems do more than pgonce: the last column says what.\n", workers, 100*p.queueControl)
	line("| | deliveries/s | times as long | p50 | p99 | lost | doubled | what it is |\n|---|---|---|---|---|---|---|---|")
	for _, q := range p.queues {
		line("| %s | %.0f | %s | %v | %v | %d | %d | %s |",
			q.name, q.rate, times(q.ratio), rounded(q.p50), rounded(q.p99), q.lost, q.doubled, q.says)
	}
}

func (p page) writeHot(line func(string, ...any)) {
	if len(p.hot) == 0 {
		return
	}
	line("\n## One hot key\n\n%d deliveries of one new key at once, from a pool of %d connections; the effect takes %v. "+
		"What is in progress comes again "+
		"after %v. Medians of %d rounds, in turns.\n", hotDeliveries, hotDeliveries, hotWork, hotPause, p.hot[0].rounds)
	line("| | connections at once | connections x ms held | all had an answer | all acknowledged | " +
		"\"in progress\", a round | effects, all rounds |")
	line("|---|---|---|---|---|---|---|")
	for _, h := range p.hot {
		line("| %s | %d | %.0f | %v | %v | %.0f | %d |", h.name, h.peak, 1000*h.held, rounded(h.first), rounded(h.last),
			float64(h.inProgress)/float64(max(1, h.rounds)), h.effects)
	}
}

func (p page) writeLoads(line func(string, ...any)) {
	if len(p.loads) == 0 {
		return
	}
	line("\n## Claims a second\n\n`Run`, with an effect of one row. The tables took turns. " +
		"The factor is of the first row's rate, with as many workers: " +
		"the median over the turns.\n")
	head := "| layout | keys | rows before | table and index |"
	for _, r := range p.loads[0].rates {
		head += fmt.Sprintf(" %s |", count1(r.workers, "worker"))
	}
	line("%s\n|---|---|---|---|%s", head, strings.Repeat("---|", len(p.loads[0].rates)))
	for _, l := range p.loads {
		row := fmt.Sprintf("| %s | %s | %d | %s |", l.layout, l.keys, l.rows, l.size)
		for _, r := range l.rates {
			row += fmt.Sprintf(" **%s** %.0f/s, %v, p99 %v |", times(r.ratio), r.rate, rounded(r.p50), rounded(r.p99))
		}
		line("%s", row)
	}
}

func count1(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// inside says whether a factor lies within the control's: then it says nothing.
func inside(ratio, control float64) bool { return ratio <= 1+control && ratio >= 1/(1+control) }

func times(ratio float64) string {
	switch {
	case ratio >= 100:
		return fmt.Sprintf("%.0f ×", ratio)
	case ratio >= 10:
		return fmt.Sprintf("%.1f ×", ratio)
	}
	return fmt.Sprintf("%.2f ×", ratio)
}

func rounded(d time.Duration) time.Duration {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond)
	case d < 100*time.Millisecond:
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}
