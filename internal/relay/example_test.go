package relay_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/valyala/fasthttp"
)

// Example is a plain reverse proxy. Streams pass through event by event. The upstream request is
// canceled when the client leaves.
func Example() {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s", r.Method, r.URL, r.Header.Get("X-User-Id"))
	}))
	defer upstream.Close()

	pool := relay.NewPool(relay.Target{Addr: upstream.Listener.Addr().String()}, relay.PoolOptions{})
	defer pool.Close()
	watcher, err := relay.NewWatcher()
	if err != nil {
		panic(err)
	}
	defer watcher.Close()

	proxy := func(ctx *fasthttp.RequestCtx) error {
		var abort relay.Abort
		stop := watcher.Watch(ctx.Conn(), abort.Cancel)
		e, err := pool.Send(&relay.Request{
			Method: string(ctx.Method()),
			Path:   string(ctx.RequestURI()),
			Header: relay.AppendForwardHeaders(nil, &ctx.Request.Header),
			Body:   [][]byte{ctx.PostBody()},
			Abort:  &abort,
		}, time.Now().Add(10*time.Second))
		if err != nil {
			stop()
			return err
		}
		if err = e.ReadHead(time.Now().Add(time.Minute)); err == nil {
			ctx.SetStatusCode(e.Status())
			relay.CopyHeaders(&ctx.Response.Header, e)
			e.SetIdleTimeout(time.Minute)
			err = relay.Reply(ctx, e, relay.ReplyOptions{Stop: stop})
		}
		if err != nil {
			stop()
			e.Close()
		}
		return err
	}
	server := &fasthttp.Server{WriteTimeout: 30 * time.Second, Handler: func(ctx *fasthttp.RequestCtx) {
		if err := proxy(ctx); err != nil {
			ctx.Error("upstream failed", fasthttp.StatusBadGateway)
		}
	}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go server.Serve(watcher.Listen(l, relay.ListenOptions{}))
	defer server.Shutdown()

	request, _ := http.NewRequest("POST", "http://"+l.Addr().String()+"/v1/x?y=z", nil)
	request.Header.Set("X-User-Id", "root")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		panic(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	http.DefaultClient.CloseIdleConnections()
	fmt.Println(response.StatusCode, string(body))
	// Output: 200 POST /v1/x?y=z
}
