package resp

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// FuzzCommand gives the parser hostile bytes. The arguments that the parser reads must be parts of
// the bytes. They must not depend on the pieces in which the bytes arrive.
func FuzzCommand(f *testing.F) {
	for _, s := range []string{"PING\r\n", encode("SET", "k", "v", "EX", "10"), "*1\r\n$-1\r\n", "*99999999999\r\n",
		"*2\r\n$3\r\nGET\r\n$67108865\r\n",
		"set \"a\\x00\" 'b'\n", "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9223372036854775807\r\nv", "*-9223372036854775808\r\n",
		"*1\r\n$0\r\n\r\n"} {
		f.Add([]byte(s))
	}
	limits := bounds{args: 100, bulk: 1 << 20, authed: true}
	f.Fuzz(func(t *testing.T, b []byte) {
		b = b[:min(len(b), bufferSize)]
		args, n, err := limits.command(b, nil)
		if n < 0 || n > len(b) || err != nil && n != 0 || len(args) > max(100, len(b)) {
			t.Fatalf("%d arguments, %d of %d bytes, %v", len(args), n, len(b), err)
		}
		if n == 0 || b[0] != '*' {
			return
		}
		parts := make([]string, len(args))
		for i, a := range args {
			parts[i] = string(a)
		}
		if len(args) > 0 && encode(parts...) != string(b[:n]) {
			t.Fatalf("%q reads as %q", b[:n], parts)
		}
		for cut := range n {
			if _, early, err := limits.command(b[:cut], nil); early != 0 || err != nil {
				t.Fatalf("%q of %q: %d, %v", b[:cut], b[:n], early, err)
			}
		}
	})
}

// FuzzConversation gives a whole connection hostile bytes. The connection must answer with replies
// and give back everything that it held.
func FuzzConversation(f *testing.F) {
	text, err := os.ReadFile(scriptFile)
	if err != nil {
		f.Fatal(err)
	}
	for _, part := range strings.Split(string(text), "\n==") {
		f.Add([]byte(part))
	}
	long := strings.Repeat("v", 20_000)
	for _, s := range []string{encode("SET", "k", long) + encode("GET", "k"),
		encode("MSET", "k", long, "l", long) + encode("MGET", "k", "l"),
		encode("NOSUCH", long), encode("SET", "k", long, "EX", "1",
			"GET") + "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$60000000\r\nxx"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := openStore(t, 1<<20)
		s, err := New(Options{Store: m, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		nc := &canned{in: bytes.NewReader(b)}
		newConn(s, nc).serve()
		p := &peer{t, nil, bufio.NewReader(&nc.out)}
		for {
			if r, err := p.reply(); err == io.EOF && r == "" {
				break
			} else if err != nil || !strings.ContainsRune("+-:$*%~_=", rune(r[0])) {
				t.Fatalf("no reply: %q, %v", r, err)
			}
		}
		if held := m.Stats().RAM.Held; held != 0 || s.buffered.Load() != 0 {
			t.Fatalf("%d bytes of leases and drafts, %d of arguments", held, s.buffered.Load())
		}
	})
}

// canned is a connection whose whole input is given beforehand.
type canned struct {
	net.Conn
	in  *bytes.Reader
	out bytes.Buffer
}

func (c *canned) Read(p []byte) (int, error)       { return c.in.Read(p) }
func (c *canned) Write(p []byte) (int, error)      { return c.out.Write(p) }
func (c *canned) SetReadDeadline(time.Time) error  { return nil }
func (c *canned) SetWriteDeadline(time.Time) error { return nil }
func (c *canned) Close() error                     { return nil }
func (c *canned) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (c *canned) LocalAddr() net.Addr              { return &net.UnixAddr{} }
