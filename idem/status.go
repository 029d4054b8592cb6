package idem

import (
	"errors"
	"net/http"
	"time"

	"github.com/pgonce/pgonce/pgerr"
)

// HTTPStatus returns the status with which an HTTP handler answers a delivery, given the error of a call of this
// package. It is the column "HTTP" of the table in the package documentation.
//
//   - nil: 200. That is right for Executed and for Duplicate.
//   - Another call holds the key, or held it and left it open: 409.
//   - The delivery itself is wrong and stays wrong: 400 for a *[KeyError]; 422 for [ErrPayloadMismatch], [ErrExpired],
//     [ErrFuture] and a *[FinalError].
//   - It may succeed later without anybody's doing, as [Retryable] says: 503.
//   - Everything else, fn's own errors among them: 500. A handler that knows them better asks first.
//
// Where [RetryAfter] is not 0, send it along. HTTPStatus is safe for concurrent use.
func HTTPStatus(err error) int {
	var key *KeyError
	var final *FinalError
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &final):
		return http.StatusUnprocessableEntity
	case errors.As(err, &key):
		return http.StatusBadRequest
	case errors.Is(err, ErrInProgress), errors.Is(err, ErrLostLease), errors.Is(err, ErrUnfinished):
		return http.StatusConflict
	case errors.Is(err, ErrPayloadMismatch), errors.Is(err, ErrExpired), errors.Is(err, ErrFuture):
		return http.StatusUnprocessableEntity
	case Retryable(err):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// RetryAfter returns how long a sender should wait before it sends the same delivery again: the value of the header
// Retry-After, in whole seconds. It is 0 where [Retryable] is false, for nil too: then no header belongs into the
// answer.
//
// A conflict with another call is over soon, so that is one second. A server that is away needs longer: five seconds.
// Neither is measured; they keep a sender from trying at once. RetryAfter is safe for concurrent use.
func RetryAfter(err error) time.Duration {
	switch {
	case !Retryable(err):
		return 0
	case errors.Is(err, ErrInProgress), errors.Is(err, ErrLostLease), pgerr.Is(err, "40001"), pgerr.Is(err, "40P01"):
		return time.Second
	}
	return 5 * time.Second
}
