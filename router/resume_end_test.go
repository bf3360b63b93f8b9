package router_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/cognitora/dataplane/router"
)

// TestNodeDiesAfterTheEnd checks that a stream that has its closing event ends well if its node
// dies before the end of the response.
func TestNodeDiesAfterTheEnd(t *testing.T) {
	t.Parallel()
	const stream = `data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"sim","choices":[{"index":0,` +
		`"delta":{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"sim","object":"model"}]}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, stream)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(node.Close)
	s := serve(t, nil, resumes("auto"), func(c *router.Config) { c.Router.Backends = []string{node.URL + ",id=x"} })
	eventually(t, "the node is in service", func() bool { return s.nodes()["x"].Eligible })
	r := s.chat(chatBody("x", streaming))
	if r.status != 200 || r.err != nil || !bytes.HasPrefix(r.body, []byte(stream)) ||
		bytes.Contains(r.body, []byte("error")) {
		t.Errorf("%v", r)
	}
}
