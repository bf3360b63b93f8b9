package relay

import (
	"cmp"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// Pauses after a temporary failure of Accept, and how often failures are logged.
const (
	acceptPauseFirst = 5 * time.Millisecond
	acceptPauseLast  = 200 * time.Millisecond
	acceptLogEvery   = 10 * time.Second
)

// acceptor retries temporary errors of Accept. A server ends at any error of Accept, but a
// temporary shortage of descriptors must not end a server.
type acceptor struct {
	net.Listener
	log   *slog.Logger // nil: slog.Default
	spoke atomic.Int64 // when a failure was last logged, in Unix ns
}

func (a *acceptor) Accept() (net.Conn, error) {
	for wait := acceptPauseFirst; ; wait = min(2*wait, acceptPauseLast) {
		c, err := a.Listener.Accept()
		if err == nil || !(IsLocal(err) || errors.Is(err, syscall.ECONNABORTED)) {
			return c, err
		}
		a.complain(err)
		time.Sleep(wait)
	}
}

func (a *acceptor) complain(err error) {
	now, last := time.Now().UnixNano(), a.spoke.Load()
	if last != 0 && now-last < int64(acceptLogEvery) || !a.spoke.CompareAndSwap(last, now) {
		return
	}
	cmp.Or(a.log, slog.Default()).Warn("connections cannot be accepted for now; trying on", "error", err)
}

// IsLocal tells whether err means that this host is out of descriptors or memory, so that the other
// side is not at fault.
func IsLocal(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOBUFS) ||
		errors.Is(err, syscall.ENOMEM)
}
