package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/pgonce/pgonce/idem"
)

const (
	workers     = 8
	maxLine     = 4 << 20         // bytes
	grace       = 5 * time.Second // what a delivery in flight gets to finish when the program is interrupted
	redelivered = 4               // times that a delivery is tried; Run has its own tries within each
)

// delivery is a line of the file.
type delivery struct {
	Provider string `json:"provider"`
	ID       string `json:"id"` // the provider's id of the event, the same in every delivery of it
	Body     string `json:"body"`
	Object   string `json:"object"` // Stripe: the subscription

	line int
}

// openFile opens a file of deliveries. It is read twice, so a pipe will not do.
func openFile(name string) (io.ReadCloser, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	return os.Open(name)
}

// read yields the deliveries of a file of JSON lines, one at a time. It ends with the first error, which names the
// line and does not show its content.
func read(r io.Reader) iter.Seq2[delivery, error] {
	return func(yield func(delivery, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, maxLine)
		n := 1
		for ; lines.Scan(); n++ {
			if len(bytes.TrimSpace(lines.Bytes())) == 0 {
				continue
			}
			d, err := parse(lines.Bytes())
			if err != nil {
				yield(delivery{}, fmt.Errorf("line %d: %w", n, err))
				return
			}
			d.line = n
			if !yield(d, nil) {
				return
			}
		}
		switch err := lines.Err(); {
		case errors.Is(err, bufio.ErrTooLong):
			yield(delivery{}, fmt.Errorf("line %d: longer than %d bytes", n, maxLine))
		case err != nil:
			yield(delivery{}, fmt.Errorf("line %d: %w", n, err))
		}
	}
}

func parse(line []byte) (d delivery, err error) {
	if err := json.Unmarshal(line, &d); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return d, fmt.Errorf("not JSON, from byte %d on", syntax.Offset)
		}
		return d, errors.New("not a JSON object with the strings provider, id and body")
	}
	// The decoder puts this character in the place of bytes that are no text. Two ids could become one so.
	if strings.ContainsRune(d.Provider+d.ID+d.Object, utf8.RuneError) {
		return d, errors.New("the provider, id or object is not UTF-8")
	}
	if d.Body == "" {
		return d, errors.New("there is no body")
	}
	return d, d.key().Validate()
}

// feed hands the deliveries to the workers as they come, and counts in t what becomes of them. When ctx is done it
// reads no further, and the deliveries in flight end on their own. It returns an error where it could not go on; a
// delivery that failed for good is noted in t.
func feed(ctx context.Context, db idem.DB, r io.Reader, t *tally) error {
	reading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// A canceled query costs its connection, and may leave open whether a COMMIT took place. So work outlives ctx a
	// little.
	work, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, abort) })()

	queue := make(chan delivery)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for d := range queue {
				res, err := persist(reading, func() (result, error) { return handle(work, db, d) })
				switch {
				case err == nil:
					t.handled(res)
				case ctx.Err() != nil: // the next run finds out what became of it
				case idem.Retryable(err):
					stop(fmt.Errorf("line %d: given up after %d tries: %w", d.line, redelivered, err))
				default:
					t.failed(fmt.Errorf("line %d: %w", d.line, err))
				}
			}
		})
	}
	err := send(reading, queue, r)
	close(queue)
	wg.Wait()
	if err == nil {
		err = context.Cause(reading)
	}
	return err
}

// send reads deliveries into the queue.
func send(ctx context.Context, queue chan<- delivery, r io.Reader) error {
	for d, err := range read(r) {
		if err != nil {
			return err
		}
		if ctx.Err() != nil { // or a select in which both are ready would take either
			return context.Cause(ctx)
		}
		select {
		case queue <- d:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// persist calls f until it succeeds or fails for good, as a sender delivers again what was not acknowledged.
func persist[T any](ctx context.Context, f func() (T, error)) (T, error) {
	pause := time.Second / 2
	for try := 1; ; try++ {
		v, err := f()
		if !idem.Retryable(err) || try == redelivered {
			return v, err
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return v, err
		}
	}
}
