package idemtest

import (
	"regexp"
	"strings"
	"sync"

	"github.com/pgonce/pgonce/internal/rig/faultconn"
)

// wire watches the connections of one handler, and does one thing to one message on them.
type wire struct {
	script *faultconn.Script

	mu   sync.Mutex
	open map[int]bool // connections in a transaction that has written
	hold func(faultconn.Message)
}

// newWire returns a wire that only watches. hold, where not nil, is called before every statement.
func newWire(hold func(faultconn.Message)) *wire {
	w := &wire{script: &faultconn.Script{}, open: map[int]bool{}, hold: hold}
	w.script.When = func(m faultconn.Message) bool {
		w.see(m)
		return false
	}
	return w
}

// newCut returns a wire that does do and then mode to the n-th message that fits.
func newCut(fits func(faultconn.Message) bool, n int, mode faultconn.Mode, do func(faultconn.Message)) *wire {
	w := &wire{open: map[int]bool{}}
	w.script = &faultconn.Script{N: n, Mode: mode, Do: do, When: func(m faultconn.Message) bool {
		w.see(m)
		return fits(m)
	}}
	return w
}

func (w *wire) see(m faultconn.Message) {
	if w.hold != nil && faultconn.Statement(m) {
		w.hold(m)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case m.Type == "CommandComplete" && writes(m.Tag):
		w.open[m.Conn] = true
	case m.Type == "ReadyForQuery" && m.Status == 'I':
		delete(w.open, m.Conn)
	}
}

// writing says whether a transaction has written and is not committed yet.
func (w *wire) writing() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.open) > 0
}

// completed fits the server's word that a statement has ended.
func completed(m faultconn.Message) bool {
	if m.From != faultconn.Backend {
		return false
	}
	switch m.Type {
	case "CommandComplete", "EmptyQueryResponse", "PortalSuspended", "ErrorResponse":
		return true
	}
	return false
}

// writes says whether a command tag tells of rows that were written.
func writes(tag string) bool {
	word, _, _ := strings.Cut(tag, " ")
	switch word {
	case "INSERT", "UPDATE", "DELETE", "MERGE", "COPY":
		return !strings.HasSuffix(tag, " 0")
	}
	return false
}

// step is a statement of a delivery, and what came of it.
type step struct {
	conn, tx int // tx counts the transactions, over all connections
	sql      string
	tag      string
	code     string // SQLSTATE of its error
	// How the transaction of the statement ended: "COMMIT", "ROLLBACK", or "" where that was not seen.
	end string
}

func (s step) wrote() bool { return writes(s.tag) }

// steps reads the statements from a trace.
func steps(trace []faultconn.Message) []step {
	var all []step
	type session struct {
		tx      int
		pending []string
		last    string // tag
		begun   bool   // a transaction that only COMMIT ends
	}
	sessions := map[int]*session{}
	txs := 0
	for _, m := range trace {
		if m.Outside {
			continue
		}
		s := sessions[m.Conn]
		if s == nil {
			s = &session{}
			sessions[m.Conn] = s
		}
		if s.tx == 0 {
			txs++
			s.tx = txs
		}
		switch {
		case faultconn.Statement(m):
			s.pending = append(s.pending, m.SQL)
		case completed(m):
			st := step{conn: m.Conn, tx: s.tx, tag: m.Tag, code: m.Code}
			if len(s.pending) > 0 {
				st.sql = s.pending[0]
			}
			if len(s.pending) > 1 {
				s.pending = s.pending[1:]
			}
			if s.last = m.Tag; m.Type == "ErrorResponse" {
				s.last = "ROLLBACK"
			}
			s.begun = s.begun || m.Tag == "BEGIN"
			if !s.begun && m.Type == "CommandComplete" {
				st.end = "COMMIT" // it is on its own
			}
			all = append(all, st)
		case m.Type == "ReadyForQuery":
			s.pending = nil
			s.begun = m.Status != 'I'
			if m.Status == 'I' {
				end := "COMMIT" // also what a statement without a transaction does
				if s.last == "ROLLBACK" {
					end = "ROLLBACK"
				}
				for i := range all {
					if all[i].conn == m.Conn && all[i].tx == s.tx {
						all[i].end = end
					}
				}
				s.tx = 0
			}
		}
	}
	return all
}

// sent returns the messages of a trace that sent a statement, in order.
func sent(trace []faultconn.Message) (all []faultconn.Message) {
	for _, m := range trace {
		if !m.Outside && faultconn.Statement(m) {
			all = append(all, m)
		}
	}
	return all
}

var writeWord = regexp.MustCompile(`(?i)\b(insert|update|delete|merge|copy|truncate)\b`)

// mayWrite says whether SQL looks like a write. It only chooses where workers wait for each other.
func mayWrite(sql string) bool { return writeWord.MatchString(sql) }

var (
	writeTarget = regexp.MustCompile(`(?is)\b(?:insert\s+into|update|delete\s+from|merge\s+into|copy)\s+(?:only\s+)?("?[\w.]+"?(?:\."?\w+"?)?)`)
	blanks      = regexp.MustCompile(`\s+`)
)

// brief returns SQL on one line.
func brief(sql string) string { return cut(strings.TrimSpace(blanks.ReplaceAllString(sql, " ")), 70) }
