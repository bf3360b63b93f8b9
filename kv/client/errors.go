//go:build linux

package client

import (
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/frame"
)

// These are the errors of a call. Names and meanings are those of the daemon's store.
var (
	ErrMiss     = errors.New("kv: no such block")
	ErrFull     = errors.New("kv: all of the daemon's memory is in use; try again later")
	ErrTooLarge = errors.New("kv: block too large")
	ErrQuota    = errors.New("kv: over a quota; close views or wait")
	ErrCorrupt  = errors.New("kv: payload and checksum do not belong together")
	// only with Item.IfAbsent
	ErrExists = errors.New("kv: there is such a block already")
	// only with Item.Durable
	ErrNotDurable = errors.New("kv: the block is not on disk, and perhaps in the daemon's memory")
	ErrPin        = errors.New("kv: a pin must end within 24 hours")
	// the Client is closed, or the daemon is shutting down
	ErrClosed = errors.New("kv: closed")
	// the operation may or may not have been done
	ErrGone         = errors.New("kv: the daemon is gone; the next call dials again")
	ErrLeaseExpired = errors.New("kv: the lease has ended; what was read under it must not be used") // from View
	ErrDenied       = errors.New("kv: access to the lease socket denied")
	ErrBusy         = errors.New("kv: the daemon has too many clients")
	ErrProtocol     = errors.New("kv: the daemon does not speak this protocol, or not this version")
	ErrClock        = errors.New("kv: the daemon's monotonic clock is another one; share its time namespace")
	ErrInternal     = errors.New("kv: the daemon failed; its log says why")
)

// errorOf returns the error for a status, or nil for OK.
func errorOf(s frame.Status) error {
	switch s {
	case frame.StatusOK:
		return nil
	case frame.StatusMiss:
		return ErrMiss
	case frame.StatusFull:
		return ErrFull
	case frame.StatusTooLarge:
		return ErrTooLarge
	case frame.StatusQuota:
		return ErrQuota
	case frame.StatusCorrupt:
		return ErrCorrupt
	case frame.StatusClosed:
		return ErrClosed
	case frame.StatusNamespace:
		return fmt.Errorf("%w, or not one of a model's blocks", block.ErrNamespace)
	case frame.StatusExists:
		return ErrExists
	case frame.StatusNotDurable:
		return ErrNotDurable
	case frame.StatusPin:
		return ErrPin
	case frame.StatusInternal:
		return ErrInternal
	case frame.StatusDenied:
		return ErrDenied
	case frame.StatusBusy:
		return ErrBusy
	}
	return fmt.Errorf("%w: %s", ErrProtocol, s)
}
