package gateway

import (
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/router/auth"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
)

// passage is what a request with a key and limits needs besides one without: the check of its
// key, of the key's list of models, and of all limits, in and out.
type passage struct {
	*call
	head *fasthttp.RequestHeader
	peer *auth.Peer
}

func newPassage(t testing.TB) *passage {
	t.Helper()
	text, id := keys.Generate()
	sum, _ := keys.Hash(text)
	const plenty = 1 << 39
	rates := limits.Rates{RequestsPerMinute: plenty, TokensPerMinute: plenty, Concurrent: plenty}
	set := new(keys.Set)
	if err := set.Put([]*keys.Record{{ID: id, SHA256: sum, Tenant: "acme", Scopes: []string{"inference"},
		Models: []string{"other", "sim"}, Limits: rates}}); err != nil {
		t.Fatal(err)
	}
	g := newLane(t, 1, false).Gateway
	g.auth = &auth.Door{Keys: set}
	g.book.Put(limits.Settings{Output: 4096, Tables: []limits.Table{
		{Tenant: "acme", Rates: rates}, {Model: "sim", Rates: limits.Rates{TokensPerMinute: plenty, Concurrent: plenty}},
	}})
	a := &passage{call: calls.Get().(*call), head: new(fasthttp.RequestHeader), peer: &auth.Peer{}}
	for name, value := range map[string]string{
		"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "OpenAI/Python 2.0",
		"X-Stainless-Lang": "python", "X-Stainless-Os": "Linux", "X-Stainless-Arch": "x64",
		"Authorization": "Bearer " + text,
	} {
		a.head.Set(name, value)
	}
	a.g, a.stage, a.status = g, answering, 200
	body := []byte(`{"model":"sim","max_tokens":100,"messages":[{"role":"user","content":"hello"}]}`)
	r := a.request
	r.API, r.Method = scan.Chat, "POST"
	r.Own(body, nil)
	if err := r.Read(nil, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Reset(); a.recycle() })
	return a
}

// pass admits a request and ends it.
func (a *passage) pass(t testing.TB) {
	who, err := a.g.auth.Identify(a.head, a.peer)
	if err != nil {
		t.Fatal(err)
	}
	a.request.Who, a.request.Received, a.reserved = who, time.Now(), limits.Reservation{}
	if err := a.reserve(true); err != nil {
		t.Fatal(err)
	}
	a.settle()
}

// TestRevokedBeforeSending: a request whose key was revoked after its head was read is not sent.
func TestRevokedBeforeSending(t *testing.T) {
	a := newPassage(t)
	who, err := a.g.auth.Identify(a.head, a.peer)
	if err != nil {
		t.Fatal(err)
	}
	who.Credential.Revoke()
	a.request.Who, a.ctx = who, contextAt(t, a.g)
	a.onSend()
	defer a.g.live.remove(a.call)
	defer a.stop()
	if end := a.request.Life.Ended(); end != request.Revoked {
		t.Errorf("the request's end is %v", end)
	}
}

// TestSettlesAfterPanic: a call whose count panics does not keep what it has reserved.
func TestSettlesAfterPanic(t *testing.T) {
	a := newPassage(t)
	who, err := a.g.auth.Identify(a.head, a.peer)
	if err != nil {
		t.Fatal(err)
	}
	a.request.Who, a.request.Received = who, time.Now()
	if err := a.reserve(true); err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		task := a.task
		defer func() { a.task = task }()
		a.task = nil
		a.settle()
	}()
	if a.reserved.Held() {
		t.Error("the reservation is kept")
	}
	if running, _ := a.reserved.Left(limits.InFlight, time.Now()); running.Remaining != running.Limit {
		t.Errorf("%+v after the end", running)
	}
}

// TestAdmitAllocatesNothing holds the limits of a request, its headers included, to no allocation.
func TestAdmitAllocatesNothing(t *testing.T) {
	a := newPassage(t)
	h := new(fasthttp.ResponseHeader)
	for _, api := range []scan.API{scan.Chat, scan.Messages} {
		a.request.API = api
		if n := testing.AllocsPerRun(100, func() {
			a.pass(t)
			a.describeLimits(h)
		}); n != 0 {
			t.Errorf("%v: %v allocations", api, n)
		}
	}
	if a.reserved.Limited() && len(h.Peek("X-Ratelimit-Remaining-Tokens")) == 0 {
		t.Error("no header")
	}
}

// BenchmarkAdmit measures the check of a key and of its list of models, and the limits of the key,
// its tenant and the model, from the head to the settlement.
func BenchmarkAdmit(b *testing.B) {
	a := newPassage(b)
	b.ReportAllocs()
	for b.Loop() {
		a.pass(b)
	}
}

func BenchmarkLimitHeaders(b *testing.B) {
	a, h := newPassage(b), new(fasthttp.ResponseHeader)
	a.pass(b)
	b.ReportAllocs()
	for b.Loop() {
		a.describeLimits(h)
	}
}

// TestSmaller: only a request that may set a maximum for its answer is told to.
func TestSmaller(t *testing.T) {
	for api, want := range map[scan.API]bool{
		scan.Chat: true, scan.Messages: true, scan.Audio: false, scan.Embeddings: false,
	} {
		r := request.New()
		r.API, r.Method = api, "POST"
		if got := strings.Contains(smaller(r), "`max_tokens`"); got != want {
			t.Errorf("%v: %s", api, smaller(r))
		}
	}
}
