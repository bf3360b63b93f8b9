package where

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
)

// see makes the finder's memo remember a chat.
func see(tb testing.TB, f *Finder, p *Prompt, body []byte) (skipped int) {
	tb.Helper()
	r := read(tb, f, scan.Chat, body)
	defer p.Reset()
	begin(f, p, r)
	skipped = r.Scan.Skipped
	want := fresh(tb, body)
	if p.chain.Blocks() != want.Blocks() {
		tb.Fatalf("%d blocks, want %d (%d bytes passed over)", p.chain.Blocks(), want.Blocks(), skipped)
	}
	f.remember(p)
	p.chain.HashTo(p.chain.Blocks())
	if got := p.chain.Keys(); !slices.Equal(got, want.Keys()) {
		i := 0
		for i < len(got) && got[i] == want.Keys()[i] {
			i++
		}
		tb.Fatalf("block %d of %d is another one (%d bytes passed over, head %d)", i, len(got), skipped, r.Scan.Head)
	}
	return skipped
}

// read makes a request of a body.
func read(tb testing.TB, f *Finder, api scan.API, body []byte) *request.Request {
	tb.Helper()
	r := request.New()
	r.API = api
	r.Own(body, nil)
	if err := r.Read(nil, f.Memo.Scans()); err != nil {
		tb.Fatal(err)
	}
	return r
}

// begin makes the chain of r for the model sim, without nodes.
func begin(f *Finder, p *Prompt, r *request.Request) {
	p.finder, p.asked, p.scan, p.step = f, r, r.Scan, new(step)
	f.begin(p, prefix.Seed("sim", "", string(r.Scan.CacheSalt)))
}

// fresh returns the chain of a chat without a memo.
func fresh(tb testing.TB, body []byte) *prefix.Chain {
	tb.Helper()
	var r scan.Request
	if err := scan.Scan(scan.Chat, body, &r); err != nil {
		tb.Fatal(err)
	}
	c := new(prefix.Chain)
	c.Reset(prefix.Seed("sim", "", string(r.CacheSalt)), slices.Clone(r.Text), nil)
	c.HashTo(c.Blocks())
	return c
}

// conversation is n turns. All but the last turn depend only on name.
func conversation(name string, n int, last string, around ...string) []byte {
	var turns []string
	for i := range n {
		r := rand.New(rand.NewPCG(uint64(i), uint64(len(name))))
		text := strings.Repeat(fmt.Sprintf("%s says %d; größer\\n ", name, r.Uint64()), 1+r.IntN(120))
		turns = append(turns, fmt.Sprintf(
			`{"role":"user","content":"%s"},{"role":"assistant","content":[{"type":"text","text":"%s"}]}`, text, text))
	}
	turns = append(turns, fmt.Sprintf(`{"role":"user","content":"%s"}`, last))
	members := append([]string{`"messages":[` + strings.Join(turns, ",") + `]`, `"model":"sim"`}, around...)
	return []byte("{" + strings.Join(members, ",") + "}")
}

func TestMemoMakesTheSameChain(t *testing.T) {
	f, p := &Finder{Memo: NewMemo(4 << 20), Metrics: metrics.New()}, &Prompt{}
	tools := `"tools":[{"type":"function","function":{"name":"f","description":"` +
		strings.Repeat("looks it up ", 30) + `"}}]`
	salt := `"cache_salt":"tenant"`
	passed, shared := 0, 0
	for n := range 24 {
		last := strings.Repeat("and now? ", 1+n)
		for i, around := range [][]string{nil, {tools}, {salt}, {tools, salt}} {
			body := conversation(strings.Repeat("x", i), n, last, around...)
			if see(t, f, p, body) > len(body)/2 {
				passed++
			}
			if see(t, f, p, conversation("shared", n, last, around...)) > 0 {
				shared++
			}
		}
	}
	if passed < 60 || shared == 0 {
		t.Errorf("%d of 96 conversations of their own were taken up behind their middle, %d of 96 shared ones",
			passed, shared)
	}
}

// TestMemoTakesUpADocument asks two questions about one long document in one string.
func TestMemoTakesUpADocument(t *testing.T) {
	f, p := &Finder{Memo: NewMemo(4 << 20), Metrics: metrics.New()}, &Prompt{}
	document := strings.Repeat(`a line of the document, with \"quotes\" in it\n`, 3000)
	see(t, f, p, conversation("doc", 0, document+"what is it about?"))
	body := conversation("doc", 0, document+"who wrote it?")
	if skipped := see(t, f, p, body); skipped < len(document)*9/10 {
		t.Errorf("%d of %d bytes were passed over", skipped, len(document))
	}
}
