package resp

import (
	"fmt"
	"strings"
	"testing"
)

// TestTransaction queues commands, as the pipeline() of redis-py does by default.
func TestTransaction(t *testing.T) {
	addr, s, m := start(t, Options{})
	p, other := dial(t, "tcp", addr), dial(t, "tcp", addr)
	long := strings.Repeat("x", 1<<20)
	p.send(encode("MULTI") + encode("SET", "a", "1") + encode("SET", "b", long) + encode("GET", "a") + encode("STRLEN",
		"b") + encode("EXEC"))
	for _, want := range []string{"+OK", "+QUEUED", "+QUEUED", "+QUEUED", "+QUEUED"} {
		if r, err := p.reply(); r != want+"\r\n" {
			t.Fatal(r, err)
		}
	}
	if r, err := p.reply(); r != fmt.Sprintf("*4\r\n+OK\r\n+OK\r\n$1\r\n1\r\n:%d\r\n", len(long)) {
		t.Fatal(r, err)
	}
	p.want("+OK\r\n", "MULTI")
	p.want("-ERR MULTI calls can not be nested\r\n", "MULTI")
	p.want("+QUEUED\r\n", "SET", "a", "2")
	p.want("+QUEUED\r\n", "SET", "c", long)
	other.want("$1\r\n1\r\n", "GET", "a")
	if held := m.Stats().RAM.Held; held != 0 {
		t.Errorf("%d bytes of the arena are held", held)
	}
	p.want("+OK\r\n", "DISCARD")
	p.want("-ERR EXEC without MULTI\r\n", "EXEC")
	p.want("-ERR DISCARD without MULTI\r\n", "DISCARD")
	p.want("$1\r\n1\r\n", "GET", "a")
	for _, bad := range [][]string{{"NOSUCH"}, {"GET"}, {"WATCH", "a"},
		{"SET", "c", strings.Repeat("x", maxQueuedBytes)}} {
		p.want("+OK\r\n", "MULTI")
		p.want("+QUEUED\r\n", "SET", "a", "3")
		if r := p.do(bad...); !strings.HasPrefix(r, "-ERR") {
			t.Errorf("%.40q: %q", bad, r)
		}
		p.want("-EXECABORT Transaction discarded because of previous errors.\r\n", "EXEC")
		p.want("$1\r\n1\r\n", "GET", "a")
	}
	p.want("+OK\r\n", "MULTI")
	p.want("+QUEUED\r\n", "EXPIRE", "a", "x")
	p.want("+QUEUED\r\n", "SET", "a", "4")
	p.want("*2\r\n-ERR value is not an integer or out of range\r\n+OK\r\n", "EXEC")
	p.want("+OK\r\n", "MULTI")
	p.want("*0\r\n", "EXEC")
	p.want("+OK\r\n", "MULTI")
	p.want("+QUEUED\r\n", "SET", "a", long)
	p.want("+OK\r\n", "DISCARD")
	p.want("$1\r\n4\r\n", "GET", "a")
	p.want("+OK\r\n", "MULTI")
	for range maxQueued {
		p.want("+QUEUED\r\n", "PING")
	}
	p.want(fmt.Sprintf("-ERR a transaction has at most %d commands\r\n", maxQueued), "PING")
	p.conn.Close()
	eventually(t, "nothing queued", func() bool { return s.Stats().Buffered == 0 })
}
