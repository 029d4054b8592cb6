package main

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// withGin puts the whole engine behind the middleware. Why not gin's Use: a chain of gin's cannot be run again after a
// conflict.
func withGin(once func(http.Handler) http.Handler) http.Handler {
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	engine.POST("/payments", func(c *gin.Context) {
		c.JSON(pay(c.Request.Context(), c.Request))
	})
	return once(engine)
}
