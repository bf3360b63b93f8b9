package resp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

// eventually waits for a condition that a connection's goroutine brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(time.Minute); !ok(); <-look.C {
		if time.Now().After(deadline) {
			t.Fatal("has not come to be: ", what)
		}
	}
}

func TestValuesOfEveryLength(t *testing.T) {
	addr, s, _ := start(t, Options{})
	p := dial(t, "tcp", addr)
	for _, n := range []int{0, 1, 1023, 1024, 8191, 8192, 8193, bufferSize - 40, bufferSize - 1, bufferSize,
		bufferSize + 1, 1 << 20, 4<<20 + 13, MaxValue} {
		v := strings.Repeat("0123456789abcde\n", n/16+1)[:n]
		p.want("+OK\r\n", "SET", "k", v)
		if got := p.do("GET", "k"); got != fmt.Sprintf("$%d\r\n%s\r\n", n, v) {
			t.Fatalf("%d bytes: %d come back", n, len(got))
		}
		if got := p.do("MGET", "k", "nothing"); got != fmt.Sprintf("*2\r\n$%d\r\n%s\r\n$-1\r\n", n, v) {
			t.Fatalf("%d bytes: MGET gives %d", n, len(got))
		}
	}
	p.send(fmt.Sprintf("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n", MaxValue+1))
	if r, _ := p.reply(); r != "-ERR "+errLongBulk.Error()+"\r\n" {
		t.Errorf("a value too long: %q", r)
	}
	p.ended()
	if st := s.Stats(); st.Writes != 14 || st.ProtocolErrors != 1 || st.Hits != 28 || st.Misses != 14 {
		t.Errorf("%+v", st)
	}
}

// TestPieces sends a conversation in pieces of every length. The replies must not depend on the
// pieces.
func TestPieces(t *testing.T) {
	addr, _, _ := start(t, Options{})
	long := strings.Repeat("v\r\n", 3000)
	talk := encode("SET", "k", long, "EX", "100") + "PING\r\n" + encode("GET", "k") + encode("NOSUCH", long, "x") +
		encode("MSET", "a", long, "b", "small", "c", long) + encode("MGET", "a", "b", "c", "d") + encode("SET", "k",
		long, "BAD") + encode("PING")
	var want strings.Builder
	fmt.Fprintf(&want, "+OK\r\n+PONG\r\n$%d\r\n%s\r\n", len(long), long)
	fmt.Fprintf(&want, "-ERR unknown command 'NOSUCH', with args beginning with: '%s' \r\n+OK\r\n",
		oneLine.Replace(long[:128]))
	fmt.Fprintf(&want, "*4\r\n$%d\r\n%s\r\n$5\r\nsmall\r\n$%d\r\n%s\r\n$-1\r\n-ERR syntax error\r\n+PONG\r\n",
		len(long), long, len(long), long)
	for _, size := range []int{1, 2, 3, 7, 100, 1000, 1023, 4096, 16383, 16384, 16385, 1 << 20} {
		p := dial(t, "tcp", addr)
		go func() {
			for rest := []byte(talk); len(rest) > 0; rest = rest[min(size, len(rest)):] {
				if _, err := p.conn.Write(rest[:min(size, len(rest))]); err != nil {
					return
				}
			}
			_ = p.conn.(*net.TCPConn).CloseWrite()
		}()
		got, err := io.ReadAll(p.in)
		if err != nil || string(got) != want.String() {
			t.Fatalf("pieces of %d: %v, %d bytes instead of %d: %.300q", size, err, len(got), want.Len(), got)
		}
	}
}

// TestDeadClient ends a client in the middle of a value. Nothing is stored, and the value's room is
// freed.
func TestDeadClient(t *testing.T) {
	addr, s, m := start(t, Options{})
	whole := encode("SET", "k", strings.Repeat("x", 100_000))
	for _, cut := range []int{50, 20_000, len(whole) - 3, len(whole) - 2, len(whole) - 1} {
		p := dial(t, "tcp", addr)
		p.send(whole[:cut])
		p.conn.Close()
		eventually(t, "no connection", func() bool { return s.Stats().Connections == 0 })
		if st := m.Stats().RAM; st.Held != 0 || st.Blocks != 0 {
			t.Fatalf("cut at %d: %+v", cut, st)
		}
	}
	p := dial(t, "tcp", addr)
	p.send(whole[:len(whole)-2] + "xx")
	if r, _ := p.reply(); r != "-ERR Protocol error: expected CRLF after a bulk string\r\n" {
		t.Errorf("without its CRLF a value is answered with %q", r)
	}
	p.ended()
	dial(t, "tcp", addr).want("$-1\r\n", "GET", "k")
}

func TestUsers(t *testing.T) {
	addr, s, _ := start(t, Options{Users: []User{
		{Name: "default", Password: "one"}, {Name: "ann", Password: "two", Tenant: "a"},
		{Name: "bob", Password: "three", Tenant: "b"}, {Name: "eve", Password: "four", Tenant: "a", ReadOnly: true},
	}})
	p := dial(t, "tcp", addr)
	noAuth := "-NOAUTH Authentication required.\r\n"
	for _, args := range [][]string{{"GET", "k"}, {"PING"}, {"SET", "k", "v"}, {"CLIENT", "ID"}, {"INFO"},
		{"SELECT", "1"}} {
		p.want(noAuth, args...)
	}
	p.want("-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH "+
		"<user> <pass> "+
		"option can be used to authenticate the client and select the RESP protocol version at the same time\r\n",
		"HELLO", "3")
	p.want("-"+errWrongPass+"\r\n", "AUTH", "two")
	p.want("-"+errWrongPass+"\r\n", "AUTH", "ann", "one")
	p.want("-"+errWrongPass+"\r\n", "HELLO", "3", "AUTH", "nobody", "one")
	p.want("+OK\r\n", "AUTH", "one")
	p.want("+OK\r\n", "SET", "k", "of default")
	p.want("+OK\r\n", "AUTH", "ann", "two")
	p.want("$-1\r\n", "GET", "k")
	p.want("+OK\r\n", "SET", "k", "of a")
	p = dial(t, "tcp", addr)
	p.want(noAuth, "GET", "k")
	if r := p.do("HELLO", "3", "AUTH", "eve", "four"); !strings.HasPrefix(r, "%7\r\n") {
		t.Errorf("HELLO: %q", r)
	}
	p.want("$4\r\nof a\r\n", "GET", "k")
	p.want("-NOPERM this user has no permissions to run the 'set' command\r\n", "SET", "k",
		strings.Repeat("x", 100_000))
	p.want("-NOPERM this user has no permissions to run the 'flushall' command\r\n", "FLUSHALL")

	of := func(tenant string) string {
		n := block.Namespace{Model: "m", Revision: "r", DType: "bf16", Layout: "l", Tokens: 16, TP: 1, PP: 1,
			Tenant: tenant}
		return block.Text(n.String(), block.Addr{})
	}
	p.want("+OK\r\n", "AUTH", "bob", "three")
	p.want("+OK\r\n", "SET", of("b"), "mine")
	const other = "-NOPERM the block address is of another tenant\r\n"
	p.want(other, "GET", of("a"))
	p.want(other, "GET", of("")) // everybody's
	p.want(other, "SET", of(""), "poison")
	p.want(other, "DEL", of("b"), of(""))
	p.want("+OK\r\n", "FLUSHALL")
	p.want("+OK\r\n", "AUTH", "ann", "two")
	p.want("$4\r\nof a\r\n", "GET", "k")
	p.want("+OK\r\n", "AUTH", "one")
	p.want("+OK\r\n", "SET", of(""), "everybody's")
	p.want(other, "GET", of("a"))
	if n := s.Stats().AuthFailures; n != 3 {
		t.Errorf("%d wrong passwords are counted", n)
	}

	big := dial(t, "tcp", addr)
	big.send("*11\r\n")
	if r, _ := big.reply(); r != "-ERR Protocol error: unauthenticated multibulk length\r\n" {
		t.Errorf("%q", r)
	}
	big = dial(t, "tcp", addr)
	big.send("*2\r\n$4\r\nAUTH\r\n$16385\r\n")
	if r, _ := big.reply(); r != "-ERR Protocol error: unauthenticated bulk length\r\n" {
		t.Errorf("%q", r)
	}
}

func TestBlockAddresses(t *testing.T) {
	addr, _, m := start(t, Options{})
	n := block.Namespace{Model: "m", Revision: "r", DType: "bf16", Layout: "l", Tokens: 16, TP: 1, PP: 1}
	a := block.Addr{Digest: block.Seed("m", "", ""), Model: n.ID(), Layer: 7}
	p := dial(t, "tcp", addr)
	v := strings.Repeat("x", 50_000)
	p.want("+OK\r\n", "SET", block.Text(n.String(), a), v)
	b, err := m.Get(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if it := b.Info().Item; it.Namespace != n.String() || len(it.Key) != 0 || string(b.Bytes()) != v {
		t.Errorf("at its address is %+v", it)
	}
	b.Release()
	p.want(":1\r\n", "EXISTS", block.Text(n.String(), a))
	p.want(":0\r\n", "DBSIZE")
	if r := p.do("GET", "cgn:x"); !strings.HasPrefix(r, "-ERR block: not an address") {
		t.Errorf("%q", r)
	}
	if r := p.do("SET", "cgn:x", v); !strings.HasPrefix(r, "-ERR block: not an address") {
		t.Errorf("%q", r)
	}
	long := strings.Repeat("k", block.MaxKey)
	p.want("+OK\r\n", "SET", long, v)
	p.want("-ERR a key has 1155 bytes, at most 1154 are allowed\r\n", "GET", "cgn:"+strings.Repeat("k", 1151))
	p.want("-ERR a key has 1025 bytes, at most 1024 are allowed\r\n", "SET", long+"k", v)
	p.want("-ERR a key has 1025 bytes, at most 1024 are allowed\r\n", "GET", long+"k")
}

// TestNamedObjects writes objects with a parent and names. Readers may leave the tail out or give
// any other.
func TestNamedObjects(t *testing.T) {
	addr, _, m := start(t, Options{})
	n := block.Namespace{Model: "m", Revision: "r", DType: "bf16", Layout: "l", Tokens: 48, TP: 1, PP: 1}
	p := dial(t, "tcp", addr)
	const names = "1112131415161718" + "2122232425262728"
	for i, size := range []int{5, 100_000} { // the second is read into its draft
		a := block.Addr{Digest: block.Digest{byte(i)}, Model: n.ID(), Layer: block.LayerAll}
		v, text := strings.Repeat("x", size), block.Text(n.String(), a)
		p.want("+OK\r\n", "SET", text+":"+strings.Repeat("7", 64)+":"+names, v)
		info, err := m.Describe(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", block.ParseNames(info.Item.Attr)); got != names || info.Item.Parent[0] != 0x77 {
			t.Errorf("names %s, parent %x", got, info.Item.Parent)
		}
		for _, tail := range []string{"", "::", "::" + strings.Repeat("9", 32)} {
			p.want(fmt.Sprintf("$%d\r\n%s\r\n", size, v), "GET", text+tail)
			p.want(":1\r\n", "EXISTS", text+tail)
		}
		if r := p.do("SET", text+"::"+names[:16], v); !strings.HasPrefix(r,
			"-ERR block: not an address: the names have 16") {
			t.Errorf("%q", r)
		}
	}
}

func TestStoreFailures(t *testing.T) {
	m := &faulty{lone: openStore(t, 1<<20)}
	addr, s, _ := start(t, Options{Store: m, Purge: m.purge})
	p := dial(t, "tcp", addr)
	oom := "-OOM command not allowed when used memory > 'maxmemory'.\r\n"
	p.want("+OK\r\n", "SET", "a", strings.Repeat("x", 700_000))
	held, err := m.Store.Get(t.Context(), block.OfKey(block.Namespace{Space: "resp.0"}.ID(), []byte("a")))
	if err != nil {
		t.Fatal(err)
	}
	p.want(oom, "SET", "b", strings.Repeat("x", 700_000))
	p.want(oom, "MSET", "c", "small", "b", strings.Repeat("x", 700_000), "d", strings.Repeat("y", 5000))
	p.want("$-1\r\n", "GET", "c")
	held.Release()
	m.fails.Store(true)
	p.want("$-1\r\n", "GET", "a")
	for _, args := range [][]string{{"SET", "a", "x"}, {"EXISTS", "a"}, {"DEL", "a"}, {"STRLEN", "a"}, {"KEYS", "*"},
		{"SCAN", "0"}, {"SET", "a", strings.Repeat("x", 20_000)}, {"FLUSHALL"}, {"DBSIZE"}, {"INFO"},
		{"INFO", "keyspace"}} {
		p.want("-ERR the store failed\r\n", args...)
	}
	if st := s.Stats(); st.Full != 2 || st.StoreFailures != 11 || st.ReadFailures != 1 {
		t.Errorf("%+v", st)
	}
}

func TestBounds(t *testing.T) {
	addr, s, _ := start(t, Options{maxClients: 3, maxArgs: 1000, maxQuery: 64 << 10, maxBuffered: 176 << 10,
		maxCommand: 1 << 20})
	p := dial(t, "tcp", addr)
	const tooLong = "-ERR the command's arguments, long values aside, have more than 65536 bytes, the most that one " +
		"command may have\r\n"
	const tooBusy = "-ERR the arguments of all commands in progress would have more than 180224 bytes; try again " +
		"when some have ended\r\n"
	p.want(tooLong, "ECHO", strings.Repeat("x", 100_000))
	p.want(tooBusy, append([]string{"DEL"}, strings.Split(strings.Repeat(strings.Repeat("k", 900)+" ", 900),
		" ")...)...)
	p.want("-ERR the command's values have more than 1048576 bytes together, the most that one command may have\r\n",
		"MSET", "a", strings.Repeat("x", 700_000), "b", strings.Repeat("x", 700_000))
	p.want("$-1\r\n", "GET", "a")

	// Two other connections hold all the memory for arguments; the third is refused.
	half := "*2\r\n$4\r\nECHO\r\n$64000\r\n" + strings.Repeat("x", 32_000)
	second, third := dial(t, "tcp", addr), dial(t, "tcp", addr)
	second.send(half)
	third.send(half)
	eventually(t, "two commands in progress", func() bool { return s.Stats().Buffered >= 128_000 })
	p.want(tooBusy, "ECHO", strings.Repeat("x", 20_000))
	third.send(strings.Repeat("x", 32_000) + "\r\n")
	if r, err := third.reply(); err != nil || len(r) != 64_000+10 {
		t.Errorf("%d bytes, %v", len(r), err)
	}
	fourth := dial(t, "tcp", addr)
	if r, _ := fourth.reply(); r != "-ERR max number of clients reached\r\n" {
		t.Errorf("one client too many is told %q", r)
	}
	fourth.ended()
	p.send("*1001\r\n")
	if r, _ := p.reply(); r != "-ERR Protocol error: invalid multibulk length\r\n" {
		t.Errorf("%q", r)
	}
	p.ended()
}

// TestSlowReader: a client requests much and reads nothing. The server holds one lease for the
// client, until it gives the client up.
func TestSlowReader(t *testing.T) {
	addr, s, m := start(t, Options{Stall: 300 * time.Millisecond})
	p := dial(t, "tcp", addr)
	p.want("+OK\r\n", "SET", "k", strings.Repeat("x", 1<<20))
	p.send(strings.Repeat(encode("GET", "k"), 100))
	eventually(t, "a reply in progress", func() bool { return m.Stats().RAM.Held > 0 })
	other := dial(t, "tcp", addr)
	for s.Stats().Stalled == 0 {
		if n := m.Stats().RAM.Held; n >= 2<<20 {
			t.Fatalf("%d bytes are held", n)
		}
		other.want("+PONG\r\n", "PING")
	}
	eventually(t, "one connection", func() bool { return s.Stats().Connections == 1 })
	if n := m.Stats().RAM.Held; n != 0 {
		t.Errorf("%d bytes are held after the end", n)
	}
	other.want("+PONG\r\n", "PING")
}

func TestStalledWriter(t *testing.T) {
	addr, s, m := start(t, Options{Stall: 300 * time.Millisecond})
	p := dial(t, "tcp", addr)
	p.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n" + strings.Repeat("x", 50_000))
	p.ended()
	eventually(t, "no draft", func() bool { return m.Stats().RAM.Held == 0 })
	if st := s.Stats(); st.Stalled != 1 || st.Aborted != 1 {
		t.Errorf("%+v", st)
	}
}

func TestShutdownFinishesCommands(t *testing.T) {
	m := openStore(t, 0)
	s, err := New(Options{Store: m})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	idle, busy := dial(t, "tcp", l.Addr().String()), dial(t, "tcp", l.Addr().String())
	idle.want("+PONG\r\n", "PING")
	busy.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\n")
	eventually(t, "a draft", func() bool { return m.Stats().RAM.Held > 0 })
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(context.Background()) }()
	idle.ended()
	busy.send(strings.Repeat("x", 100_000) + "\r\n")
	if r, err := busy.reply(); r != "+OK\r\n" {
		t.Errorf("%q %v", r, err)
	}
	busy.ended()
	if err := errors.Join(<-done, <-served); err != nil {
		t.Error(err)
	}
}

func TestTLS(t *testing.T) {
	addr, _, _ := start(t, Options{TLS: &tls.Config{Certificates: []tls.Certificate{certificate(t)}}})
	raw, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	p := &peer{t, raw, nil}
	p.in = bufioReader(raw)
	v := strings.Repeat("x", 3<<20)
	p.want("+OK\r\n", "SET", "k", v)
	p.want(fmt.Sprintf("$%d\r\n%s\r\n", len(v), v), "GET", "k")
	p.want("+PONG\r\n", "PING")
}

func TestWrongOptions(t *testing.T) {
	users := []User{{Name: "default", Password: "x"}}
	for _, o := range []Options{{}, {Store: openStore(t, 1<<20), Users: []User{{Name: "x"}}},
		{Store: openStore(t, 1<<20), Users: []User{{Password: "x"}}},
		{Store: openStore(t, 1<<20), Users: append(users, users...)}, {Store: openStore(t, 1<<20),
			Users: []User{{Name: "a", Password: "b", Tenant: strings.Repeat("t", 600)}}}} {
		if _, err := New(o); !errors.Is(err, ErrOptions) {
			t.Errorf("%+v: %v", o.Users, err)
		}
	}
}

func TestKeysIsBounded(t *testing.T) {
	const maxKeys = 2000
	addr, _, m := start(t, Options{maxKeys: maxKeys})
	space := block.Namespace{Space: "resp.0"}
	for i := range maxKeys + 1 {
		k := fmt.Appendf(nil, "key:%d", i)
		it := store.Item{Addr: block.OfKey(space.ID(), k), Namespace: space.String(), Key: k}
		if _, err := m.Put(t.Context(), it, k, false); err != nil {
			t.Fatal(err)
		}
	}
	p := dial(t, "tcp", addr)
	if r := p.do("KEYS", "*"); !strings.HasPrefix(r, "-ERR KEYS matches more than") {
		t.Errorf("%.100q", r)
	}
	if r := p.do("KEYS", "key:123?"); !strings.HasPrefix(r, "*10\r\n") {
		t.Errorf("%.100q", r)
	}
	seen, cursor := map[string]bool{}, "0"
	for {
		parts := strings.Split(p.do("SCAN", cursor, "COUNT", "500"), "\r\n")
		for _, s := range parts[4:] {
			if strings.HasPrefix(s, "key:") {
				seen[s] = true
			}
		}
		if cursor = parts[2]; cursor == "0" {
			break
		}
	}
	if len(seen) != maxKeys+1 {
		t.Errorf("SCAN has given %d keys", len(seen))
	}
}

// TestKeysOnce: a store visits a block in two tiers twice, and KEYS names it once.
func TestKeysOnce(t *testing.T) {
	addr, _, _ := start(t, Options{Store: &twice{openStore(t, 1<<20)}})
	p := dial(t, "tcp", addr)
	p.want("+OK\r\n", "SET", "k", "v")
	p.want("*1\r\n$1\r\nk\r\n", "KEYS", "*")
	p.want("*2\r\n$1\r\n0\r\n*1\r\n$1\r\nk\r\n", "SCAN", "0", "COUNT", "10000")
}

func TestGlobIsNotExponential(t *testing.T) {
	if matchGlob(bytes.Repeat([]byte("*a"), 500), bytes.Repeat([]byte("a"), 100)) {
		t.Error("matches")
	}
	for p, texts := range map[string][2]string{"a*b*c": {"aXbXc", "aXbX"}, "[a-c]\\*": {"b*", "bx"},
		"[z-a]": {"m", "M"}, "*": {"", "\x00x"[:0] + "\x01"}, "[\\]]": {"]", "["}} {
		if !matchGlob([]byte(p), []byte(texts[0])) || p != "*" && matchGlob([]byte(p), []byte(texts[1])) {
			t.Errorf("%q", p)
		}
	}
}
