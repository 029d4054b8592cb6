package main

import (
	"encoding/json"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// refused is a card that is not covered, and an address that nobody can find.
const refused = "refused"

// service stands for a service of somebody else's, payment or shipping: it outlives the processes that are killed,
// keeps books, honours idempotency keys, and loses some replies.
type service struct {
	server *http.Server
	url    string
	lost   atomic.Int64

	mu    sync.Mutex
	seen  map[string]int
	books map[string][]int64 // by order
}

func startService() (*service, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &service{url: "http://" + l.Addr().String(), seen: map[string]int{}, books: map[string][]int64{}}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.server.Serve(l) }()
	return s, nil
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var asked request
	if json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10)).Decode(&asked) != nil {
		http.Error(w, "what?", http.StatusBadRequest)
		return
	}
	time.Sleep(rand.N(20 * time.Millisecond)) // the network
	status := s.book(r.Header.Get("Idempotency-Key"), asked)
	if rand.IntN(10) == 0 {
		s.lost.Add(1)
		panic(http.ErrAbortHandler) // it is booked, and nobody hears of it
	}
	w.WriteHeader(status)
	_, _ = w.Write([]byte(`{}`))
}

// book does what it is asked for, unless it has seen the key: then the answer is the one of that time.
func (s *service) book(key string, asked request) (status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.seen[key]; ok {
		return old
	}
	status = http.StatusUnprocessableEntity
	if asked.To != refused {
		status = http.StatusOK
		s.books[asked.Order] = append(s.books[asked.Order], asked.Amount)
	}
	s.seen[key] = status
	return status
}

// of returns what is booked for an order: how many entries, and their sum.
func (s *service) of(order string) (entries int, sum int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, amount := range s.books[order] {
		sum += amount
	}
	return len(s.books[order]), sum
}
