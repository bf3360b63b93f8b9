// Package client gets and puts KV blocks of the cache daemon on this host, over its lease socket,
// without copying what it reads: a View is a piece of the daemon's memory, mapped for reading only.
//
// A View lasts as long as its lease. What was read counts only when Close has returned nil:
// ErrLeaseExpired means that the bytes may have become another block's while they were read. Use
// them before Close, and let what was made of them go further only after it; Read does it in this
// order.
//
//	view, err := c.Get(ctx, addr)
//	if errors.Is(err, client.ErrMiss) { … compute it … }
//	upload(view.Bytes())
//	if err := view.Close(); err != nil { … throw away what was uploaded … }
//
// A Client may be used by any number of goroutines; they share a bounded number of sockets. When
// the daemon is gone, what was under way fails with ErrGone, and the next use dials again. Views of
// the old daemon stay readable memory until they are closed, but Close says ErrLeaseExpired.
// Closing the Client ends all leases, with the same effect.
package client
