package idem_test

import (
	"fmt"
	"sync"
	"time"
)

// provider is a payment provider with a ledger and a clock of its own.
type provider struct {
	// remembers is how long it knows an idempotency key: for ever where negative, 0: it does not heed keys.
	remembers time.Duration

	mu     sync.Mutex
	now    time.Duration
	seen   map[string]answered
	ledger []entry
}

type answered struct {
	at      time.Duration
	receipt receipt
}

// entry is a line of the provider's ledger: refunds have a negative amount. Who looks finds it by the reference,
// which a provider that does not heed idempotency keys keeps as well.
type entry struct {
	Ref    string
	Amount int
}

func newProvider(remembers time.Duration) *provider {
	return &provider{remembers: remembers, seen: map[string]answered{}}
}

// charge books the amount, unless key is one that the provider remembers: then it gives the same answer again.
func (p *provider) charge(key, ref string, amount int) receipt {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old, ok := p.seen[key]; ok && (p.remembers < 0 || p.now-old.at < p.remembers) {
		return old.receipt
	}
	p.ledger = append(p.ledger, entry{ref, amount})
	r := receipt{fmt.Sprintf("ch_%d", len(p.ledger)), amount}
	p.seen[key] = answered{p.now, r}
	return r
}

// advance lets time pass.
func (p *provider) advance(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now += d
}

// look returns what was booked for a reference, as a person would find it.
func (p *provider) look(ref string) (found []receipt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, e := range p.ledger {
		if e.Ref == ref {
			found = append(found, receipt{fmt.Sprintf("ch_%d", i+1), e.Amount})
		}
	}
	return found
}
