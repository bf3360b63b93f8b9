package router_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/race"
)

// TestAnnouncedBodiesTakeNoMemory checks that a body takes memory only for the bytes that have
// come.
func TestAnnouncedBodiesTakeNoMemory(t *testing.T) {
	s := serve(t, simulate(t, 1))
	const connections, size, most = 31, 32<<20 + 1, 64 << 20
	resident := func() int { return statusOf(t, "/proc/self", "VmRSS:") << 10 }
	debug.FreeOSMemory() // frees the memory of earlier tests
	before := resident()
	for round := range 4 {
		var conns []net.Conn
		for range connections {
			conn := s.dial()
			fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"+
				"Expect: 100-continue\r\n\r\n", size)
			if status, _ := answer(t, bufio.NewReader(conn)); status != 100 {
				t.Fatal("the head is not taken")
			}
			io.WriteString(conn, `{"model":"m"} `)
			conns = append(conns, conn)
		}
		if r := s.chat(chatBody("small", plain)); r.status != 200 {
			t.Fatal(r.status)
		}
		if took := resident() - before; took > most {
			t.Errorf("round %d: %d MiB for %d connections that announce %d bytes and send 14",
				round, took>>20, connections, size)
		}
		for _, conn := range conns {
			conn.Close()
		}
		s.idle()
	}
}

// TestMemoryOfLongBodies checks that a router takes no more than two copies of a body of 50 MiB,
// for any content and any order of members.
func TestMemoryOfLongBodies(t *testing.T) {
	t.Parallel()
	if race.Enabled {
		t.Skip("the race detector takes memory of its own")
	}
	const size, most = 50 << 20, 110 << 20
	fill := func(s string, bytes int) string { return strings.Repeat(s, bytes/len(s)) }
	object := func(members int) string { return `{"z":0` + fill(`,"b":1e15`, members*len(`,"b":1e15`)) + `,"a":0}` }
	bodies := []struct{ name, path, body string }{
		{"one message", "chat/completions", chat("", `"`+fill("plain text, ", size)+`"`)},
		{"escapes", "chat/completions", chat("", `"`+fill(`\n\u00e9`, size)+`"`)},
		{"content before role", "chat/completions", `{"messages":[{"content":"` + fill("text ", size) +
			`","name":"n","role":"user"}],"model":"sim"}`},
		{"tools after messages", "chat/completions", `{"messages":[{"content":"` + fill("text ", size/2) + `",` +
			`"role":"user"}],` +
			`"tools":[{"z":"` + fill("tool ", size/4) + `","a":"` + fill("more ", size/4) + `"}],"model":"sim"}`},
		{"many messages", "chat/completions", `{"model":"sim","messages":[{"role":"user","content":"hi"}` +
			fill(`,{"content":"`+fill("text ", 5000)+`","role":"user"}`, size) + `]}`},
		{"numbers in objects", "chat/completions",
			chat(`"tools":[`+object(2)+fill(","+object(1000), size)+`],`, `"hi"`)},
		{"escaped image", "chat/completions", chat("", `[{"type":"image_url",`+
			`"image_url":{"url":"data:`+fill(`iVBORw0\/`, size)+`"}}]`)},
		{"token ids", "completions", `{"model":"sim","prompt":[1` + fill(",2", size) + `]}`},
		{"many small texts", "completions", `{"model":"sim","prompt":["x"` + fill(`,"y"`, size) + `]}`},
	}
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, `{"object":"list","data":[{"id":"sim"}]}`)
	}))
	t.Cleanup(backend.Close)
	start := func(c *exec.Cmd) error {
		c.Env = append(c.Env, "TEST_MODE=score")
		return c.Start()
	}
	for _, b := range bodies {
		dir, log := t.TempDir(), &logged{t: t}
		cmd, _ := program(t, "router", start, log, dir, "false", backend.URL+",id=a")
		s := unixSite(t, dir, log)
		eventually(t, "the router serves", func() bool {
			return strings.Contains(log.text(), "router serves") && s.eligible() == 1
		})
		for range 3 {
			s.post("/v1/"+b.path, chatBody("small", plain))
		}
		proc := fmt.Sprintf("/proc/%d", cmd.Process.Pid)
		before := statusOf(t, proc, "VmRSS:") << 10
		if err := os.WriteFile(proc+"/clear_refs", []byte("5"), 0); err != nil {
			t.Skip("the kernel does not forget the highest size: ", err)
		}
		r := s.post("/v1/"+b.path, b.body)
		took := statusOf(t, proc, "VmHWM:")<<10 - before
		t.Logf("%s: %d MiB more for %d MiB, status %d", b.name, took>>20, len(b.body)>>20, r.status)
		if r.status != 200 || took > most {
			t.Errorf("%s: %d MiB more for %d MiB, status %d: %.300s",
				b.name, took>>20, len(b.body)>>20, r.status, r.body)
		}
		cmd.Process.Kill()
		s.client.CloseIdleConnections()
	}
}

// chat is a body with one message.
func chat(members, content string) string {
	return `{"model":"sim",` + members + `"messages":[{"role":"user","content":` + content + `}]}`
}
