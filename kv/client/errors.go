//go:build linux

package client

import (
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/frame"
)

// These are the errors of a call. The names and meanings of these errors are those of the daemon's
// store.
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
	ErrNames      = errors.New("kv: the names are not those of the blocks before the last one")
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

// statusErrors are the errors of the statuses; that of OK is nil.
var statusErrors = map[frame.Status]error{
	frame.StatusOK:         nil,
	frame.StatusMiss:       ErrMiss,
	frame.StatusFull:       ErrFull,
	frame.StatusTooLarge:   ErrTooLarge,
	frame.StatusQuota:      ErrQuota,
	frame.StatusCorrupt:    ErrCorrupt,
	frame.StatusClosed:     ErrClosed,
	frame.StatusNamespace:  fmt.Errorf("%w, or not one of a model's blocks", block.ErrNamespace),
	frame.StatusExists:     ErrExists,
	frame.StatusNotDurable: ErrNotDurable,
	frame.StatusPin:        ErrPin,
	frame.StatusNames:      ErrNames,
	frame.StatusInternal:   ErrInternal,
	frame.StatusDenied:     ErrDenied,
	frame.StatusBusy:       ErrBusy,
}

// errorOf returns the error for a status, or nil for OK.
func errorOf(s frame.Status) error {
	if err, known := statusErrors[s]; known {
		return err
	}
	return fmt.Errorf("%w: %s", ErrProtocol, s)
}
