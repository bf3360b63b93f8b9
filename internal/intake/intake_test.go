package intake

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"
)

func TestTwiceFramed(t *testing.T) {
	for head, want := range map[string]bool{
		"":                               false,
		"Content-Length: 3\r\n":          false,
		"Transfer-Encoding: chunked\r\n": false,
		"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n":           true,
		"transfer-encoding: chunked\r\nX: y\r\ncontent-length: 3\r\n":   true,
		"X-Content-Length: 3\r\nTransfer-Encoding: chunked\r\nX: y\r\n": false,
	} {
		var h fasthttp.RequestHeader
		if err := h.Read(bufio.NewReader(strings.NewReader("POST / HTTP/1.1\r\nHost: x\r\n" + head + "\r\n"))); err !=
			nil {
			t.Fatalf("%q: %v", head, err)
		}
		if got := TwiceFramed(&h); got != want {
			t.Errorf("%q: %v", head, got)
		}
		if n := testing.AllocsPerRun(100, func() { TwiceFramed(&h) }); n != 0 {
			t.Errorf("%q: %v allocations", head, n)
		}
	}
}

func TestChangesEngine(t *testing.T) {
	for path, want := range map[string]bool{
		"/v1/load_lora_adapter": true, "/v1/unload_lora_adapter": true, "/v1/load_lora_adapter/": true,
		"/v1//load_lora_adapter":     true,
		"/v1/unload_lora_adapter%2f": true, "/v1%2FLoad_LoRA_Adapter": true, "/v1/x/../load_lora_adapter;v=1": true,
		"/v1/chat/completions": false, "/v1/": false, "/v1/load_lora_adapte": false,
	} {
		if ChangesEngine([]byte(path)) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
}

// TestContextOf: the connection is found from the hook's header, for every request.
func TestContextOf(t *testing.T) {
	found := make(chan net.Conn, 2)
	answered := make(chan net.Conn, 2)
	server := &fasthttp.Server{
		HeaderReceived: func(h *fasthttp.RequestHeader) (c fasthttp.RequestConfig) {
			found <- ContextOf(h).Conn()
			return c
		},
		Handler: func(ctx *fasthttp.RequestCtx) { answered <- ctx.Conn() },
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"", "body"} {
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		if at := <-answered; <-found != at || at.RemoteAddr().String() != conn.LocalAddr().String() {
			t.Error("the header is elsewhere")
		}
	}
	conn.Close()
	if err := server.Shutdown(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
