package main

import (
	"net/http"

	"github.com/labstack/echo/v4"
)

// withEcho puts the whole server behind the middleware. Why not echo.WrapMiddleware: echo writes the answer to an
// error that a handler returns only after the middleware, which would have committed an empty 200.
func withEcho(once func(http.Handler) http.Handler) http.Handler {
	e := echo.New()
	e.POST("/payments", func(c echo.Context) error {
		status, answer := pay(c.Request().Context(), c.Request())
		if status >= http.StatusInternalServerError {
			return echo.NewHTTPError(status, answer)
		}
		return c.JSON(status, answer)
	})
	return once(e)
}
