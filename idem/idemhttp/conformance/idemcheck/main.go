// Command idemcheck runs the checks of package conformance against a server, and prints a table.
//
//	go run github.com/pgonce/pgonce/idem/idemhttp/conformance/idemcheck -url http://localhost:8080/payments \
//		-body '{"cents": 500}' -caller 'Authorization: Basic YWxpY2U6' -other 'Authorization: Basic Ym9iOg=='
//
// It makes real requests, which have effects. It exits with 1 where a check was not passed.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"

	"github.com/pgonce/pgonce/idem/idemhttp/conformance"
)

func main() {
	t := conformance.Target{Caller: http.Header{}}
	flag.StringVar(&t.URL, "url", "", "the `address` of the endpoint")
	flag.StringVar(&t.Method, "method", http.MethodPost, "the method")
	flag.StringVar(&t.Body, "body", "", "the body of a request that succeeds")
	flag.StringVar(&t.OtherBody, "otherbody", "", "the body of another one; by default the same with a space behind it")
	flag.StringVar(&t.Header, "header", "Idempotency-Key", "the name of the header")
	flag.Func("caller", "a `header` that authenticates the caller, as 'Name: value'", into(&t.Caller))
	flag.Func("other", "a `header` that authenticates another caller", into(&t.Other))
	flag.Parse()
	if t.URL == "" {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	report := conformance.Run(ctx, t)
	stop()
	fmt.Print(report)
	if !report.OK() {
		os.Exit(1)
	}
}

// into adds a header to h.
func into(h *http.Header) func(string) error {
	return func(s string) error {
		name, value, ok := strings.Cut(s, ":")
		if !ok {
			return fmt.Errorf("no header: a colon is missing")
		}
		if *h == nil {
			*h = http.Header{}
		}
		h.Add(name, strings.TrimSpace(value))
		return nil
	}
}
