package inbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/pgonce/pgonce/internal/pg"
	"github.com/pgonce/pgonce/pgerr"
)

// What a handler's failure can be, besides an error of its own.
var (
	ErrFinal  = errors.New("no retry can help")
	ErrPanic  = errors.New("the handler panicked")
	ErrMisuse = errors.New("the handler has broken its contract")

	errExit = errors.New("the handler ended its goroutine")
)

// handle calls fn for a message whose transaction is tx, marked with token. A nil error says that tx can be completed.
func handle(ctx context.Context, tx pg.OwnTx, token int64, m Message, fn Handler) error {
	err := call(ctx, tx, m, fn)
	state := tx.Check(ctx, token&^pg.MarkCount)
	if err != nil && state == nil {
		state = check(ctx, tx, token)
	}
	switch {
	case errors.Is(state, pg.ErrTxEnded) && err != nil:
		return fmt.Errorf("%w: it ended the transaction in SQL text, and returned: %w", ErrMisuse, err)
	case err != nil || state == nil:
		return err
	case errors.Is(state, pg.ErrLost), errors.Is(state, pg.ErrCanceled):
		return state
	case errors.Is(state, pg.ErrNoAnswer) && !rowsOpen(state, tx.Fail(ctx)):
		return state
	}
	return fmt.Errorf("%w: it returned nil, and %w", ErrMisuse, state)
}

// check asks the server whether tx still is the transaction of the attempt. Why not after a success: the completion
// asks.
func check(ctx context.Context, tx pg.Tx, token int64) error {
	ctx, cancel := pg.Detached(ctx)
	defer cancel()
	var same bool
	err := tx.Send(ctx, &pg.Stmt{SQL: sameSQL, Args: []any{token}, Dest: []any{&same}})
	if err == nil && !same {
		return pg.ErrTxEnded
	}
	return nil // a connection that does not answer now loses nothing: the attempt has failed anyway
}

// rowsOpen reports whether it is the handler's doing that its transaction does not answer. ended is what the roll back
// found: it tells open rows from a connection that is lost.
func rowsOpen(state, ended error) bool {
	return pgerr.Code(state) == "" && !errors.Is(state, context.DeadlineExceeded) &&
		!(errors.Is(ended, pg.ErrLost) && pgerr.Retryable(state))
}

// call calls fn in a goroutine of its own, so that one that ends its goroutine (t.FailNow) does not end the worker.
func call(ctx context.Context, tx pg.Tx, m Message, fn Handler) error {
	done := make(chan error, 1)
	go func() {
		err := errExit
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("%w: %v\n%s", ErrPanic, p, debug.Stack())
			}
			done <- err
		}()
		err = fn(ctx, tx, m)
	}()
	return <-done
}

// Classes of errors, where the server gave no SQLSTATE.
const (
	classError   = "error"
	classPanic   = "panic"
	classMisuse  = "misuse"
	classTimeout = "timeout"
)

func classOf(err error) string {
	switch code := pgerr.Code(err); {
	case errors.Is(err, ErrMisuse):
		return classMisuse
	case errors.Is(err, ErrPanic):
		return classPanic
	case code != "":
		return code
	case errors.Is(err, context.DeadlineExceeded):
		return classTimeout
	}
	return classError
}
