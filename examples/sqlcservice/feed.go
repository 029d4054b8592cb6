package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/pgonce/pgonce/idem"
)

const workers = 4

// work hands the deliveries of in to the workers, and says what became of each.
func (w worker) work(ctx context.Context, in io.Reader, out io.Writer) error {
	var wg sync.WaitGroup
	deliveries, lines := make(chan message), make(chan string)
	for range workers {
		wg.Go(func() {
			for m := range deliveries {
				lines <- w.answer(ctx, m)
			}
		})
	}
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		for line := range lines {
			fmt.Fprintln(out, line)
		}
	}()
	err := read(ctx, in, deliveries)
	close(deliveries)
	wg.Wait()
	close(lines)
	<-printed
	return err
}

func read(ctx context.Context, in io.Reader, deliveries chan<- message) error {
	for dec := json.NewDecoder(in); ; {
		var m message
		switch err := dec.Decode(&m); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		select {
		case deliveries <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// answer is what the queue would be told.
func (w worker) answer(ctx context.Context, m message) string {
	switch out, err := w.handle(ctx, m); {
	case err == nil:
		return fmt.Sprint(m.ID, " ", out, " - acknowledge")
	case idem.Retryable(err):
		return fmt.Sprint(m.ID, " ", err, " - deliver it again")
	default:
		return fmt.Sprint(m.ID, " ", err, " - to the dead letters")
	}
}
