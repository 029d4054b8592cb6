package idem

import (
	"errors"
	"net/http"
	"time"

	"github.com/pgonce/pgonce/pgerr"
)

// HTTPStatus returns the status with which a handler answers a delivery, given the error of a call of this package. It
// is the column "HTTP" of the table in the package documentation: 200 for nil, 409 if another call holds the key, or
// left it open, 400 or 422 for a delivery that stays wrong, and 503 where [Retryable]. Everything else is 500, fn's own
// errors among them: a handler that knows them better asks first.
//
// If [RetryAfter] is not 0, send it along. Safe for concurrent use.
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

// RetryAfter returns how long a sender should wait before the same delivery, for the header Retry-After, in whole
// seconds. It is 0 where [Retryable] is false, for nil too: then send no header. It is one second for a conflict with
// another call, and five for a server that is away; neither is measured. Safe for concurrent use.
func RetryAfter(err error) time.Duration {
	switch {
	case !Retryable(err):
		return 0
	case errors.Is(err, ErrInProgress), errors.Is(err, ErrLostLease), pgerr.Is(err, "40001"), pgerr.Is(err, "40P01"):
		return time.Second
	}
	return 5 * time.Second
}
