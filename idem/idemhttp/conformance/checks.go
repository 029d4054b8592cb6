package conformance

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// wants checks a refusal.
func wants(what string, got reply, err error, status int) (string, error) {
	switch {
	case err != nil:
		return "", err
	case got.status != status:
		return "", fmt.Errorf("%s: answered with %d, not %d", what, got.status, status)
	case got.kind != "application/problem+json":
		return fmt.Sprintf("%d, but no application/problem+json", status), nil
	}
	return fmt.Sprint(status), nil
}

// A request without a key is 400.
func (t Target) missing(ctx context.Context) (string, error) {
	got, err := t.send(ctx, t.Caller, "", t.Body)
	return wants("no key", got, err, http.StatusBadRequest)
}

// A key that is no string is 400.
func (t Target) malformed(ctx context.Context) (detail string, err error) {
	for _, key := range []string{`"`, `"a`, `""`, `"a" b`, `"é"`} {
		got, err := t.send(ctx, t.Caller, key, t.Body)
		if detail, err = wants("the key "+key, got, err, http.StatusBadRequest); err != nil {
			return "", err
		}
	}
	return detail, nil
}

// A retry gets the status and the body of the first request, and has no effect.
func (t Target) replay(ctx context.Context) (string, error) {
	grew, err := t.effects(ctx)
	if err != nil {
		return "", err
	}
	key, first, err := t.fresh(ctx)
	if err != nil {
		return "", err
	}
	for range 2 {
		again, err := t.send(ctx, t.Caller, key, t.Body)
		switch {
		case err != nil:
			return "", err
		case !first.same(again):
			return "", fmt.Errorf("a retry got another response: %d, not %d, or another body", again.status, first.status)
		}
	}
	if err := grew(1); err != nil {
		return "", err
	}
	_, other, err := t.fresh(ctx)
	if err == nil && other.same(first) {
		err = &notRun{"each execution must answer with another body; else a replay cannot be told from a second effect"}
	}
	return fmt.Sprint(first.status), err
}

// The same key with another payload is 422, and leaves the first response alone.
func (t Target) mismatch(ctx context.Context) (string, error) {
	key, first, err := t.fresh(ctx)
	if err != nil {
		return "", err
	}
	got, err := t.send(ctx, t.Caller, key, t.OtherBody)
	detail, err := wants("another body", got, err, http.StatusUnprocessableEntity)
	if err != nil {
		return "", err
	}
	again, err := t.send(ctx, t.Caller, key, t.Body)
	if err == nil && !first.same(again) {
		err = fmt.Errorf("afterwards the first body got another response: %d", again.status)
	}
	return detail, err
}

// Of requests at once one is executed. The others are told to come again (409), or wait and get its response.
func (t Target) concurrent(ctx context.Context) (string, error) {
	grew, err := t.effects(ctx)
	if err != nil {
		return "", err
	}
	const n = 8
	key := newKey()
	replies, err := t.race(ctx, key, n)
	if err != nil {
		return "", err
	}
	settled, err := t.settled(ctx, key)
	if err != nil {
		return "", err
	}
	told := 0
	for _, r := range replies {
		switch {
		case r.status == http.StatusConflict:
			told++
		case !r.same(settled):
			return "", fmt.Errorf("%d requests at once got different responses, one of them %d", n, r.status)
		}
	}
	return fmt.Sprintf("%d of %d got 409, the others one response", told, n), grew(1)
}

// A request that is broken off has one effect in the end, and one response.
func (t Target) crash(ctx context.Context) (string, error) {
	grew, err := t.effects(ctx)
	if err != nil {
		return "", err
	}
	keys := 0
	for _, after := range []time.Duration{0, 2, 5, 10, 20, 50, 100} {
		key := newKey()
		cut, cancel := context.WithTimeout(ctx, max(after*time.Millisecond, 1))
		if t.Crash != nil {
			cut, cancel = context.WithCancel(ctx)
		}
		done := make(chan reply, 1)
		go func() {
			got, err := t.send(cut, t.Caller, key, t.Body)
			if err != nil {
				got = reply{}
			}
			done <- got
		}()
		if t.Crash != nil {
			time.Sleep(after * time.Millisecond)
			err = t.Crash(ctx)
		}
		first := <-done
		cancel()
		if err != nil {
			return "", err
		}
		settled, err := t.settled(ctx, key)
		if err != nil {
			return "", err
		}
		again, err := t.send(ctx, t.Caller, key, t.Body)
		switch {
		case err != nil:
			return "", err
		case !settled.same(again), first.ok() && !first.same(settled):
			return "", fmt.Errorf("a request broken off after %v got different responses", after*time.Millisecond)
		}
		keys++
	}
	return fmt.Sprintf("%d requests broken off", keys), grew(keys)
}

// A key belongs to its caller: another one's request with it is another request.
func (t Target) callers(ctx context.Context) (string, error) {
	if t.Other == nil {
		return "", &notRun{"needs a second caller"}
	}
	key, first, err := t.fresh(ctx)
	if err != nil {
		return "", err
	}
	other, err := t.send(ctx, t.Other, key, t.Body)
	switch {
	case err != nil:
		return "", err
	case first.same(other):
		return "", fmt.Errorf("another caller got the response of the first")
	case !other.ok():
		return "", fmt.Errorf("another caller was answered with %d", other.status)
	}
	return "each has its own", nil
}
