package main

import (
	"encoding/json"
	"net/http"

	"github.com/go-chi/chi/v5"
)

// withChi gives the middleware to the route, for chi's handlers and middleware are those of net/http.
func withChi(once func(http.Handler) http.Handler) http.Handler {
	r := chi.NewRouter()
	r.With(once).Post("/payments", func(w http.ResponseWriter, r *http.Request) {
		status, answer := pay(r.Context(), r)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(answer)
	})
	return r
}
