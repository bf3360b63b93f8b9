package resp

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestLMCache replays the recorded bytes of LMCache's two redis clients. redis:// uses RESP3 and
// hangs if a miss is not RESP3's null. resp:// throws at any unexpected byte.
func TestLMCache(t *testing.T) {
	text, err := os.ReadFile("testdata/lmcache_redis_wire.txt")
	if err != nil {
		t.Fatal(err)
	}
	addr, _, _ := start(t, Options{})
	m := &lmcache{t: t, addr: addr, conns: map[string]*peer{}, resp3: map[string]bool{}, values: map[string]string{}}
	n := 0
	for line := range strings.Lines(string(text)) {
		m.play(strings.TrimSuffix(line, "\n"))
		n++
	}
	t.Logf("%d commands on %d connections, %d hits, %d misses", n, len(m.conns), m.hits, m.misses)
	if m.hits == 0 || m.misses == 0 {
		t.Error("the recording has hits and misses")
	}
}

// lmcache knows what redis would reply.
type lmcache struct {
	t            *testing.T
	addr         string
	conns        map[string]*peer
	resp3        map[string]bool
	values       map[string]string
	hits, misses int
}

var placeholder = regexp.MustCompile(`^<(\d+) bytes>$`)

// payload is the value that a line of the recording stands for.
func (m *lmcache) payload(key, text string) string {
	if p := placeholder.FindStringSubmatch(text); p != nil {
		n, _ := strconv.Atoi(p[1])
		return strings.Repeat(key+"\r\n", n/len(key)+1)[:n]
	}
	text, err := strconv.Unquote(`"` + strings.ReplaceAll(text, `"`, `\"`) + `"`)
	if err != nil {
		m.t.Fatal(err)
	}
	return text
}

func (m *lmcache) play(line string) {
	name, text, _ := strings.Cut(line, " ")
	p := m.conns[name]
	if p == nil {
		p = dial(m.t, "tcp", m.addr)
		m.conns[name] = p
	}
	args := strings.Split(text, " ")
	switch args[0] {
	case "HELLO":
		m.resp3[name] = true
		got := regexp.MustCompile(`id\r\n:\d+`).ReplaceAllString(p.do(args...), "id\r\n:1")
		if want := "%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:1\r\n" +
			"$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"; got != want {
			m.t.Fatalf("HELLO replies %q", got)
		}
	case "CLIENT":
		want := "+OK\r\n"
		if args[1] == "MAINT_NOTIFICATIONS" {
			want = "-ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP.\r\n"
		}
		p.want(want, args...)
	case "SET":
		v := m.payload(args[1], strings.Join(args[2:], " "))
		m.values[args[1]] = v
		p.want("+OK\r\n", "SET", args[1], v)
	case "EXISTS", "DEL":
		_, found := m.values[args[1]]
		p.want(map[bool]string{true: ":1\r\n", false: ":0\r\n"}[found], args...)
		if args[0] == "DEL" {
			delete(m.values, args[1])
		}
	case "GET":
		m.get(name, args[1])
	default:
		m.t.Fatalf("unknown command in the recording: %s", line)
	}
}

func (m *lmcache) get(name, key string) {
	v, found := m.values[key]
	want := fmt.Sprintf("$%d\r\n%s\r\n", len(v), v)
	switch {
	case found:
		m.hits++
	case m.resp3[name]:
		m.misses++
		want = "_\r\n"
	default:
		m.misses++
		want = "$-1\r\n"
	}
	m.conns[name].want(want, "GET", key)
}
