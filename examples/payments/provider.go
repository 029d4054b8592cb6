package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// provider stands for the payment provider: a server that outlives the API's processes, with a ledger of its own. It
// honours idempotency keys, takes its time, and loses some replies when it has booked, and some requests before that.
type provider struct {
	lost atomic.Int64

	mu     sync.Mutex
	seen   map[string]reply
	ledger []booking
}

type reply struct {
	status  int
	receipt receipt
}

// booking is a line of a ledger, the provider's or ours.
type booking struct {
	Order, Refund, Receipt string
	Amount                 int64
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var asked payment
	if json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&asked) != nil {
		http.Error(w, "what?", http.StatusBadRequest)
		return
	}
	time.Sleep(rand.N(20 * time.Millisecond)) // the network, and the card's bank
	luck := rand.IntN(20)
	if luck == 0 {
		p.lose()
	}
	answer := p.book(r.Header.Get("Idempotency-Key"), asked)
	if luck <= 2 {
		p.lose()
	}
	w.WriteHeader(answer.status)
	_ = json.NewEncoder(w).Encode(answer.receipt)
}

// lose closes the connection without a reply.
func (p *provider) lose() {
	p.lost.Add(1)
	panic(http.ErrAbortHandler)
}

// book books a payment, unless it has seen the key: then the answer is the one of that time.
func (p *provider) book(key string, asked payment) reply {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old, ok := p.seen[key]; ok {
		return old
	}
	answer := reply{status: http.StatusPaymentRequired}
	if !declines(asked) {
		answer = reply{http.StatusOK, receipt{fmt.Sprintf("rc_%d", len(p.ledger)+1), asked.Amount}}
		p.ledger = append(p.ledger, booking{asked.Order, asked.Refund, answer.receipt.ID, asked.Amount})
	}
	if p.seen == nil {
		p.seen = map[string]reply{}
	}
	p.seen[key] = answer
	return answer
}

// declines says which cards are not covered.
func declines(p payment) bool { return p.Amount%10 == 3 }
