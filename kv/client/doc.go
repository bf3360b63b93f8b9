// Package client gets and puts KV blocks of the cache daemon on this host, over its lease socket.
// The package reads without a copy: a View is a piece of the daemon's memory, mapped read-only.
//
// A View is valid as long as its lease. A View's bytes count only once Close has returned nil.
// ErrLeaseExpired means that another block may have overwritten them during the read. Use the bytes
// before Close, and use the result only after Close. Read uses the bytes and the result in this
// order.
//
//	view, err := c.Get(ctx, addr)
//	if errors.Is(err, client.ErrMiss) { … compute it … }
//	upload(view.Bytes())
//	if err := view.Close(); err != nil { … throw away what was uploaded … }
//
// Any number of goroutines may use a Client; the goroutines share a bounded number of sockets. When
// the daemon ends, running calls fail with ErrGone, and the next call dials again. The memory of
// the old daemon's Views stays readable until they are closed, but Close then returns
// ErrLeaseExpired. Closing the Client ends all leases and makes Close of a View return
// ErrLeaseExpired.
package client
