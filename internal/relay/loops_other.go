//go:build !linux

package relay

import (
	"context"
	"time"

	"github.com/valyala/fasthttp"
)

// Loops relays nothing on this system. Streams stay with their goroutines.
type Loops struct{}

// NewLoops returns Loops that do nothing.
func NewLoops(LoopsOptions) (*Loops, error) { return new(Loops), nil }

// Drain does nothing.
func (*Loops) Drain() {}

// Wait returns nil.
func (*Loops) Wait(context.Context) error { return nil }

// Close does nothing.
func (*Loops) Close() {}

func (*relayedReply) park(*fasthttp.RequestCtx, *ReplyOptions) bool { return false }

// Park takes no connection on this system.
func (*Parking) Park(parkable, time.Time) bool { return false }
