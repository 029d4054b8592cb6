//go:build !linux && !darwin && !freebsd

// Package pgserver starts a private PostgreSQL server on Linux, macOS and FreeBSD. Here its functions return an error.
package pgserver

import (
	"context"
	"errors"
)

// Advice is what to tell somebody whose machine has no PostgreSQL.
const Advice = "  There is no private server on this operating system."

var errUnsupported = errors.New("pgserver: not on this operating system")

// Config says what server Start makes.
type Config struct {
	BinDir   string
	Settings map[string]string
	TempDir  string
}

// Source says where Download gets the binaries from.
type Source struct{ Repository, Archives, Binaries string }

// Server is a running private PostgreSQL; here there is none.
type Server struct{}

// FastAndUnsafe returns no settings.
func FastAndUnsafe() map[string]string { return map[string]string{} }

// Find fails.
func Find(context.Context) (string, error) { return "", errUnsupported }

// Download fails.
func Download(context.Context, Source) (string, error) { return "", errUnsupported }

// Start fails.
func Start(context.Context, Config) (*Server, error) { return nil, errUnsupported }

// Join fails.
func Join(context.Context, Config) (*Server, error) { return nil, errUnsupported }

// DSN returns nothing.
func (*Server) DSN(string) string { return "" }

// Version returns nothing.
func (*Server) Version() string { return "" }

// LogFile returns nothing.
func (*Server) LogFile() string { return "" }

// Stop does nothing.
func (*Server) Stop() error { return nil }

// Kill fails.
func (*Server) Kill() error { return errUnsupported }

// Restart fails.
func (*Server) Restart(context.Context) error { return errUnsupported }

// Keep fails.
func (*Server) Keep() (string, error) { return "", errUnsupported }
