package transport

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// liar answers every request on one TLS connection with the bytes that say returns, and closes the
// connection.
func liar(t *testing.T, say func(asked wire.Frame) []byte) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := identity(t, pkiDir, pki.KVCached).Mutual(wire.ALPN)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			c := tls.Server(raw, config)
			var r wire.Reader
			r.Reset(c)
			var f wire.Frame
			if r.Next(&f) == nil {
				_, _ = c.Write(say(f))
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return l.Addr().String()
}

// TestLyingServer: an answer that breaks the protocol is refused, with the error that fits.
func TestLyingServer(t *testing.T) {
	ok := func(asked wire.Frame) wire.Frame {
		return wire.Frame{Version: wire.Version, Op: asked.Op, Request: asked.Request, Namespace: []byte(namespace),
			Len: 10, Total: 10, Body: 10}
	}
	with := func(change func(f *wire.Frame), body string) func(wire.Frame) []byte {
		return func(asked wire.Frame) []byte {
			f := ok(asked)
			change(&f)
			return append(f.Append(nil), body...)
		}
	}
	cut := func(asked wire.Frame) []byte {
		f := ok(asked)
		return f.Append(nil)[:60]
	}
	for name, c := range map[string]struct {
		say  func(asked wire.Frame) []byte
		want error
	}{
		"another version":    {with(func(f *wire.Frame) { f.Version = 2 }, "0123456789"), wire.UnsupportedVersion},
		"oversized body":     {with(func(f *wire.Frame) { f.Body, f.Len, f.Total = wire.MaxBody+1, wire.MaxBody+1, wire.MaxBody+1 }, ""), wire.TooLarge},
		"oversized block":    {with(func(f *wire.Frame) { f.Total = wire.MaxBody + 1 }, "0123456789"), wire.BadFrame},
		"another operation":  {with(func(f *wire.Frame) { f.Op = wire.Ping }, "0123456789"), wire.BadFrame},
		"unknown operation":  {with(func(f *wire.Frame) { f.Op = 99 }, "0123456789"), wire.BadFrame},
		"another request":    {with(func(f *wire.Frame) { f.Request++ }, "0123456789"), wire.BadFrame},
		"another range":      {with(func(f *wire.Frame) { f.Offset = 1 }, "0123456789"), wire.BadFrame},
		"too little":         {with(func(f *wire.Frame) { f.Len, f.Body = 5, 5 }, "01234"), wire.BadFrame},
		"wrong sum":          {with(func(*wire.Frame) {}, "0123456789"), wire.Corrupt},
		"truncated body":     {with(func(*wire.Frame) {}, "01234"), io.ErrUnexpectedEOF},
		"truncated head":     {cut, io.ErrUnexpectedEOF},
		"an unknown refusal": {with(func(f *wire.Frame) { f.Status, f.Body = 200, 0 }, ""), wire.Status(200)},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := newPool(t, PoolOptions{}).Peer(Target{Address: liar(t, c.say), Lane: TLS})
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := get(t.Context(), p, "b"); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}
