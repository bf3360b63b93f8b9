package resp

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/redisserver"
	"github.com/cognitora/dataplane/kvcached/store"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(childVariable); addr != "" {
		childServer(addr)
		return
	}
	goleak.VerifyTestMain(m)
}

// start serves a store on a loopback port until the test ends. The store must then have got
// everything back.
func start(t testing.TB, o Options) (addr string, s *Server, m *store.Store) {
	t.Helper()
	switch st := o.Store.(type) {
	case nil:
		here := openStore(t, 0)
		m, o.Store = here.Store, here
	case lone:
		m = st.Store
	case *faulty:
		m = st.Store
	case *twice:
		m = st.Store
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if m != nil && o.Purge == nil {
		o.Purge = purgeOf(t, m)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error("shutdown:", err)
		}
		if err := <-served; err != nil {
			t.Error("serve:", err)
		}
		if held := m.Stats().RAM.Held; held != 0 {
			t.Errorf("%d bytes of leases and drafts were not given back", held)
		}
		if n := s.buffered.Load(); n != 0 {
			t.Errorf("%d bytes of arguments are still counted", n)
		}
	})
	return l.Addr().String(), s, m
}

// peer is a client that reads replies as they are on the wire.
type peer struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
}

func dial(t testing.TB, network, addr string) *peer {
	t.Helper()
	conn, err := net.Dial(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	return &peer{t, conn, bufio.NewReaderSize(conn, 1<<16)}
}

func (p *peer) send(raw string) {
	p.t.Helper()
	if _, err := io.WriteString(p.conn, raw); err != nil {
		p.t.Fatal(err)
	}
}

// encode is a command on the wire.
func encode(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b.String()
}

// reply reads one complete reply, as it is on the wire.
func (p *peer) reply() (string, error) {
	line, err := p.in.ReadString('\n')
	if err != nil {
		return line, err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	switch line[0] {
	case '$', '=':
		if n < 0 {
			return line, nil
		}
		b := make([]byte, n+2)
		_, err = io.ReadFull(p.in, b)
		return line + string(b), err
	case '%':
		n *= 2
	case '*', '~', '>':
	default:
		return line, nil
	}
	for range n {
		var part string
		if part, err = p.reply(); err != nil {
			return line, err
		}
		line += part
	}
	return line, nil
}

// do sends a command and returns the reply.
func (p *peer) do(args ...string) string {
	p.t.Helper()
	p.send(encode(args...))
	r, err := p.reply()
	if err != nil {
		p.t.Fatalf("%.100q: %v", args, err)
	}
	return r
}

// want is do and compares.
func (p *peer) want(reply string, args ...string) {
	p.t.Helper()
	if got := p.do(args...); got != reply {
		p.t.Errorf("%.100q replies %.200q, not %.200q", args, got, reply)
	}
}

// ended checks that the server has closed the connection.
func (p *peer) ended() {
	p.t.Helper()
	if r, err := p.reply(); err == nil {
		p.t.Errorf("a reply, not the end: %q", r)
	} else if os.IsTimeout(err) {
		p.t.Error("the connection has not ended")
	}
}

// startRedis runs a redis-server that also listens on a Unix socket.
func startRedis(t testing.TB) (s *redisserver.Server, socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "redis.sock")
	return redisserver.Start(t, "--unixsocket", socket), socket
}

func bufioReader(c net.Conn) *bufio.Reader { return bufio.NewReaderSize(c, 1<<16) }

// certificate is a self-signed one.
func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
