//go:build !linux

package takeover

import (
	"context"
	"errors"
	"log/slog"
	"net"
)

var errSystem = errors.New("sockets are handed over on Linux only; set takeover.socket to off")

// Outcomes of requests for the sockets.
const (
	Refused   = "refused"
	Abandoned = "abandoned"
)

// Claim is empty on this system.
type Claim struct {
	PID     int
	Version string
	Auth    string
}

// Ask always fails.
func Ask(context.Context, string) (*Claim, error) { return nil, errSystem }

// Take returns nil.
func (*Claim) Take(setting, address string) net.Listener { return nil }

// Gone returns nil.
func (*Claim) Gone() <-chan struct{} { return nil }

// Serving does nothing.
func (*Claim) Serving() {}

// Close does nothing.
func (*Claim) Close() {}

// Options of an Offer.
type Options struct {
	Sockets []Socket
	Auth    string
	Logger  *slog.Logger
	Count   func(outcome string)
}

// Offer does nothing on this system.
type Offer struct{}

// Open always fails.
func Open(string) (*net.UnixListener, error) { return nil, errSystem }

// New returns an Offer that nobody can take.
func New(*net.UnixListener, Options) *Offer { return &Offer{} }

// Serve waits for the end of ctx.
func (*Offer) Serve(ctx context.Context) (taker int, taken bool) {
	<-ctx.Done()
	return 0, false
}
