package router_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"testing"
)

// TestAnnouncedBodiesTakeNoMemory, only what comes of them does.
func TestAnnouncedBodiesTakeNoMemory(t *testing.T) {
	s := serve(t, simulate(t, 1))
	const connections, size, most = 31, 32<<20 + 1, 64 << 20
	resident := func() int { return statusOf(t, "/proc/self", "VmRSS:") << 10 }
	debug.FreeOSMemory() // what others have left
	before := resident()
	for round := range 4 {
		var conns []net.Conn
		for range connections {
			conn := s.dial()
			fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", size)
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
			t.Errorf("round %d: %d MiB for %d connections that announce %d bytes and send 14", round, took>>20, connections, size)
		}
		for _, conn := range conns {
			conn.Close()
		}
		s.idle()
	}
}
