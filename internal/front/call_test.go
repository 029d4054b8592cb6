package front

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pgonce/pgonce/internal/pg"
)

// What follows an answer has a while more than the caller's context, and no longer.
func TestOutliving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		parent, end := context.WithTimeout(context.WithValue(t.Context(), key{}, "v"), time.Minute)
		defer end()
		ctx, cancel := outliving(parent)
		defer cancel()
		require.Equal(t, "v", ctx.Value(key{}))
		begun := time.Now()
		<-ctx.Done()
		require.Equal(t, time.Minute+pg.CleanUpTime, time.Since(begun))

		// One that is done already, and one that is not needed any more.
		ctx, cancel = outliving(parent)
		begun = time.Now()
		<-ctx.Done()
		require.Equal(t, pg.CleanUpTime, time.Since(begun))
		cancel()
		ctx, cancel = outliving(t.Context())
		cancel()
		require.Error(t, ctx.Err())
	})
}
