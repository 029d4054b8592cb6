package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const clients = 4

// pay lets clients pay orders, and get a part of the money back. It returns when every payment has an answer.
func pay(ctx context.Context, url, name string, orders int) (declined int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var refused atomic.Int64
	next := make(chan int)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for i := range next {
				charged, err := payOrder(ctx, fmt.Sprintf("%s/orders/%s-%d", url, name, i))
				if err != nil {
					cancel(err)
				} else if !charged {
					refused.Add(1)
				}
			}
		})
	}
	for i := range orders {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	return refused.Load(), context.Cause(ctx)
}

// payOrder charges an order, and refunds up to two parts of it. Some requests are made twice, as by a double click.
func payOrder(ctx context.Context, order string) (charged bool, err error) {
	if charged, err = request(ctx, order+"/charge", 100+rand.Int64N(100), 1+rand.IntN(2)); err != nil || !charged {
		return false, err
	}
	for i := range rand.IntN(3) {
		_, err := request(ctx, fmt.Sprintf("%s/refunds/part-%d", order, i), 10*(1+rand.Int64N(4)), 1+rand.IntN(2))
		if err != nil {
			return true, err
		}
	}
	return true, nil
}

var errAnswers = errors.New("the API gave different answers to one payment")

// request makes the same request in n tabs at the same time, and wants one answer.
func request(ctx context.Context, url string, amount int64, n int) (good bool, err error) {
	receipts, errs := make([]receipt, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { receipts[i], errs[i] = insist(ctx, url, amount) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return false, err
	}
	for _, r := range receipts {
		if r != receipts[0] {
			return false, errAnswers
		}
	}
	return receipts[0] != receipt{}, nil
}

// insist repeats a request until it has an answer. A payment that is declined has the empty receipt.
func insist(ctx context.Context, url string, amount int64) (r receipt, err error) {
	body, err := json.Marshal(map[string]int64{"amount": amount})
	if err != nil {
		return r, err
	}
	for {
		status, r, err := post(ctx, url, body)
		switch {
		case err == nil && status == http.StatusOK:
			return r, nil
		case err == nil && status == http.StatusPaymentRequired:
			return receipt{}, nil
		case err == nil && status != http.StatusServiceUnavailable:
			return r, fmt.Errorf("the API answered %d", status)
		}
		select {
		case <-ctx.Done():
			return r, context.Cause(ctx)
		case <-time.After(20*time.Millisecond + rand.N(100*time.Millisecond)):
		}
	}
}

func post(ctx context.Context, url string, body []byte) (status int, r receipt, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, r, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, r, err // killed, or not up yet
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		err = json.NewDecoder(resp.Body).Decode(&r)
	}
	return resp.StatusCode, r, err
}
