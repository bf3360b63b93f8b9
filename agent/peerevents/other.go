//go:build !linux

package peerevents

import (
	"context"
	"errors"
	"net"
)

// Server does nothing on this system.
type Server struct{}

// Open always fails.
func Open(string, int) (*net.UnixListener, error) {
	return nil, errors.New("events of the kernel are told on Linux only")
}

// New returns a Server that does nothing.
func New(Options) *Server { return &Server{} }

// Stats returns zeros.
func (*Server) Stats() Stats { return Stats{} }

// Serve waits for the end of ctx.
func (*Server) Serve(ctx context.Context, _ *net.UnixListener) { <-ctx.Done() }
