package outbox

import (
	"strconv"
	"strings"
	"time"
)

// lowMarks remembers, of each lane, below which number nothing is left, so that a relay does not walk again and
// again over the dead rows of what was published.
//
// A number is not the order of commits: an event may be committed long after events with higher numbers. Who has a
// low number has a transaction id as well (see [appendSQL]), and so one that is below every id that is assigned
// later. A mark that was seen in one snapshot therefore waits for an id that is assigned after it, and counts when
// all ids below that one have ended: whatever they committed is visible, and lies at or above the first event that
// is read then.
//
// Why not take the snapshot's own xmax: it is the id after the last one that has ended. A transaction that is
// running may have that id, or a higher one, and a lower number than what was seen.
type lowMarks struct {
	mark  [Lanes]int64 // nothing is left up to it
	next  [Lanes]int64 // the mark to come; -1: none
	after [Lanes]int64 // all transaction ids below it must have ended; 0: not known yet
	last  int64        // the id that was assigned last
	since time.Time
}

// keepMarks is how long marks are believed. A table that was emptied with RESTART IDENTITY, or restored from a dump,
// begins with low numbers again.
const keepMarks = 10 * time.Second

func (m *lowMarks) reset() {
	*m = lowMarks{since: time.Now()}
	for lane := range m.next {
		m.next[lane] = -1
	}
}

// text returns the marks as the server reads an array.
func (m *lowMarks) text() string {
	if time.Since(m.since) > keepMarks {
		m.reset()
	}
	var b strings.Builder
	b.WriteByte('{')
	for lane, mark := range m.mark {
		if lane > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(mark, 10))
	}
	b.WriteByte('}')
	return b.String()
}

// assigned says that xid was assigned after everything that was read so far. An id that is lower than the one before
// is another server's: a standby that took over without what was written last, or one with a dump. Its numbers may be
// lower as well.
func (m *lowMarks) assigned(xid int64) {
	if xid <= m.last {
		m.reset()
	}
	m.last = xid
	for lane := range m.after {
		if m.next[lane] >= 0 && m.after[lane] == 0 {
			m.after[lane] = xid
		}
	}
}

// read says that first was the lowest number of a lane, in a snapshot in which every id below xmin had ended.
func (m *lowMarks) read(lane, first, xmin int64) {
	if m.next[lane] >= 0 && m.after[lane] != 0 && xmin >= m.after[lane] {
		m.mark[lane] = max(m.mark[lane], min(m.next[lane], first-1))
		m.next[lane] = -1
	}
	if m.next[lane] < 0 {
		m.next[lane], m.after[lane] = first-1, 0
	}
}
