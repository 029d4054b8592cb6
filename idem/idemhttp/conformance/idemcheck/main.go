// Command idemcheck runs the checks of package conformance against a server, and prints a table.
//
//	go run github.com/pgonce/pgonce/idem/idemhttp/conformance/idemcheck -url http://localhost:8080/payments \
//		-body '{"cents": 500}' -caller 'Authorization: Basic YWxpY2U6' -other 'Authorization: Basic Ym9iOg=='
//
// It makes real requests, which have effects. It exits with 0 where every check was passed, with 1 where one was not
// passed or not made, and with 2 where its flags are wrong.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"

	"github.com/pgonce/pgonce/idem/idemhttp/conformance"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// run is the command: it returns the exit status.
func run(ctx context.Context, args []string, out, complaints io.Writer) int {
	t := conformance.Target{}
	flags := flag.NewFlagSet("idemcheck", flag.ContinueOnError)
	flags.SetOutput(complaints)
	flags.StringVar(&t.URL, "url", "", "the `address` of the endpoint")
	flags.StringVar(&t.Method, "method", http.MethodPost, "the method")
	flags.StringVar(&t.Body, "body", "", "the body of a request that succeeds")
	flags.StringVar(&t.OtherBody, "otherbody", "", "the body of another one; by default the same with a space behind it")
	flags.StringVar(&t.Header, "header", "Idempotency-Key", "the name of the header")
	flags.Func("caller", "a `header` that authenticates the caller, as 'Name: value'", into(&t.Caller))
	flags.Func("other", "a `header` that authenticates another caller", into(&t.Other))
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil: // and written
		return 2
	case t.URL == "", flags.NArg() > 0:
		flags.Usage()
		return 2
	}
	report := conformance.Run(ctx, t)
	fmt.Fprint(out, report)
	if !report.OK() {
		return 1
	}
	return 0
}

// into adds a header to h.
func into(h *http.Header) func(string) error {
	return func(s string) error {
		name, value, ok := strings.Cut(s, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return errors.New("no header: it is 'Name: value'")
		}
		if *h == nil {
			*h = http.Header{}
		}
		h.Add(strings.TrimSpace(name), strings.TrimSpace(value))
		return nil
	}
}
