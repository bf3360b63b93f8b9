package kvcached

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/prefix"
)

// recordedPrompt returns the prompt of recordedChunks for a router, and its digests.
func recordedPrompt(t *testing.T) (*prefix.Chain, []block.Digest) {
	t.Helper()
	var golden struct{ Prompt []uint32 }
	text, err := os.ReadFile("../kv/lmcache/testdata/chunk_names.json")
	if err == nil {
		err = json.Unmarshal(text, &golden)
	}
	if err != nil {
		t.Fatal(err)
	}
	var c prefix.Chain
	c.Reset(prefix.Seed("tiny", "", ""), nil, golden.Prompt)
	d, digests := block.Seed("tiny", "", ""), []block.Digest(nil)
	for tokens := golden.Prompt; len(tokens) >= block.Tokens; tokens = tokens[block.Tokens:] {
		d = block.Next(d, (*[block.Tokens]uint32)(tokens))
		digests = append(digests, d)
	}
	return &c, digests
}

// follows starts a router's map of the daemons' blocks. A node's kv address is its daemon's name.
func follows(t *testing.T, promote holdings.Promote, daemons map[string]*Daemon) *holdings.Map {
	t.Helper()
	static := map[string]string{}
	for name, d := range daemons {
		static[name] = "unix://" + d.At("grpc-sock")
	}
	m := holdings.New(holdings.Options{Static: static, Promote: promote})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return m
}

// reading tells a daemon what a node's engine can read, as an agent does.
func reading(t *testing.T, d *Daemon, node, namespace string) {
	t.Helper()
	r := residency.Report{Engine: node, Epoch: 1, Fresh: true, Reads: []string{namespace}}
	if err := d.index.Report(&r); err != nil {
		t.Fatal(err)
	}
}

// elsewhere is a router that asks for the recorded prompt, on host b.
type elsewhere struct {
	t       *testing.T
	m       *holdings.Map
	q       holdings.Query
	chain   *prefix.Chain
	digests []block.Digest
}

// awaits asks until the answer for the node "reads", and for the node "other", is right.
func (r *elsewhere) awaits(what string, is func(reads, other holdings.Reach) bool) {
	r.t.Helper()
	awaitThat(r.t, what, func() bool {
		r.q.Reset()
		r.q.Begin(r.m, "tiny")
		r.q.Node("reads", "b")
		r.q.Node("other", "b")
		r.m.Match(r.chain, &r.q)
		return is(r.q.Reach[0], r.q.Reach[1])
	})
}

// promotes asks for blocks from last back to before; the digests of those before it are unknown.
func (r *elsewhere) promotes(last, before int) {
	p := r.m.Promotion(&r.q, 0, "tiny", holdings.Wait{})
	for i := last; i >= before; i-- {
		p.Add((*[32]byte)(&r.digests[i]))
	}
	p.Last, p.Before = last, before
	r.m.Ask(p)
}

// TestLMCacheElsewhere stores the recorded chunks of a real LMCache on one host. They count as
// shared for an engine of another host that reads such chunks, with the time in which they come,
// and not for one with other weights. A promotion brings them to that host, where they count in
// RAM.
func TestLMCacheElsewhere(t *testing.T) {
	keys, told := recordedChunks(t)
	slices.Sort(keys) // the parts of a chunk follow each other
	s := newSite(t)
	a, _ := s.host(t, "a", nil)
	b, _ := s.host(t, "b", nil)
	meet(t, 2, a, b)
	source := alias.Source{Scheme: alias.LMCache, Keys: told.Keys, Model: told.Model, DType: told.Dtype,
		World: told.World, Halves: told.Halves, First: alias.Name(told.First), Served: told.Served,
		Revision: told.Revision}
	space := source.Namespace(256).String()
	reading(t, b, "reads", space)
	source.Revision = "other"
	reading(t, b, "other", source.Namespace(256).String())
	r := &elsewhere{t: t, m: follows(t, holdings.PromoteFleet, map[string]*Daemon{"a": a, "b": b})}
	r.chain, r.digests = recordedPrompt(t)
	first, second := keys[:2], keys[2:]
	if strings.Contains(first[0], fmt.Sprintf("@%x@", told.Names[1])) {
		first, second = second, first
	}
	stores := func(keys []string) {
		for _, key := range keys {
			redis(t, a.At("resp"), fmt.Sprintf("SET %s %s", key, strings.Repeat("x", 9000)))
			awaitThat(t, "the keeper knows", func() bool { return redis(t, b.At("resp"), "EXISTS "+key)[0] == ":1" })
		}
	}
	stores(first)
	if r, err := kv(t, a).TellChunks(t.Context(), told); err != nil || r.Taken != 2 {
		t.Fatal(r, err)
	}
	r.awaits("a chunk of another host counts", func(reads, other holdings.Reach) bool {
		return reads == holdings.Reach{Shared: 16} && other.Shared == 0
	})
	r.promotes(31, 0)
	r.awaits("the first chunk is here", func(reads, other holdings.Reach) bool {
		return reads.Host == 16 && other.Disk == 0
	})
	stores(second)
	r.awaits("both chunks count, with the time of a pull", func(reads, other holdings.Reach) bool {
		return reads.Host == 16 && reads.Disk == 16 && reads.Shared == 32 && reads.Fetch > 0 && other.Shared == 0
	})
	r.promotes(31, 20)
	r.awaits("both chunks are here", func(reads, other holdings.Reach) bool {
		return reads.Host == 32 && other.Shared == 0
	})
	awaitThat(t, "four parts are promoted", func() bool { return r.m.Stats().Promoted == 4 })
	if st := r.m.Stats(); st.PromotionsFailed != 0 || st.PromotionsDropped != 0 {
		t.Errorf("%+v", st)
	}
	if p, err := kv(t, b).ChunkParts(t.Context(), &pb.ChunkPartsRequest{Namespace: space, Digests: r.digests[31][:],
		Before: 1}); err != nil || p.Chunks != 2 || len(p.Digests) != 4*32 || p.Keys != told.Keys {
		t.Errorf("the receiver knows %+v, %v", p, err)
	}
}

// TestLMCachePromotedFromDisk promotes chunks that the host has on SSD only. A router that asks for
// blocks of other hosts nowhere brings them too.
func TestLMCachePromotedFromDisk(t *testing.T) {
	keys, told := recordedChunks(t)
	c, _ := settings(t, t.TempDir(), nil)
	d, stop := begin(t, c)
	if _, err := kv(t, d).TellChunks(t.Context(), told); err != nil {
		t.Fatal(err)
	}
	for i, key := range keys {
		redis(t, d.At("resp"), fmt.Sprintf("SET %s %s", key, strings.Repeat("x", 28+3000*i)), "GET "+key)
	}
	awaitThat(t, "SSD has the chunks", func() bool { _, disk := counted(t, d); return disk == 32 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	d, _ = begin(t, c)
	m := follows(t, holdings.PromoteDisk, map[string]*Daemon{"here": d})
	chain, digests := recordedPrompt(t)
	var q holdings.Query
	reaches := func(want holdings.Reach) {
		t.Helper()
		awaitThat(t, fmt.Sprint(want), func() bool {
			q.Reset()
			q.Begin(m, "tiny")
			q.Node("node", "here")
			m.Match(chain, &q)
			return q.Reach[0] == want
		})
	}
	reaches(holdings.Reach{Device: holdings.Unknown, Disk: 32, Shared: 32})
	p := m.Promotion(&q, 0, "tiny", holdings.Wait{})
	for i := 31; i >= 20; i-- {
		p.Add((*[32]byte)(&digests[i]))
	}
	p.Last, p.Before = 31, 20 // the daemon knows the chunk before
	m.Ask(p)
	reaches(holdings.Reach{Device: holdings.Unknown, Host: 32, Disk: 32, Shared: 32})
	awaitThat(t, "four parts are promoted", func() bool { return m.Stats().Promoted == 4 })
}

// TestLMCacheReadsOtherHosts: what LMCache asks its daemon for comes from the host that has it.
func TestLMCacheReadsOtherHosts(t *testing.T) {
	s := newSite(t)
	s3 := func(c *Config) { c.S3.Listen = "127.0.0.1:0" }
	a, _ := s.host(t, "a", s3)
	b, _ := s.host(t, "b", s3)
	meet(t, 2, a, b)
	keys, _ := recordedChunks(t)
	for i, key := range keys {
		redis(t, a.At("resp"), fmt.Sprintf("SET %s %s", key, strings.Repeat("x", 28+i)))
	}
	for i, key := range keys {
		awaitThat(t, "EXISTS", func() bool { return redis(t, b.At("resp"), "EXISTS "+key)[0] == ":1" })
		if i%2 == 0 {
			continue // MGET asks for it without a GET before
		}
		if got := redis(t, b.At("resp"), "GET "+key)[0]; got != strings.Repeat("x", 28+i) {
			t.Errorf("GET %s: %q", key, got)
		}
	}
	if got := redis(t, b.At("resp"), "STRLEN "+keys[0])[0]; got != ":28" {
		t.Errorf("STRLEN: %q", got)
	}
	for i := 0; i < len(keys); i += 2 {
		got, err := redisAsked(b.At("resp"), "MGET "+keys[i])
		if err != nil || got[0] != "*1" {
			t.Errorf("MGET %s: %q, %v", keys[i], got, err)
		}
	}
	object := "/chunks/MODEL%401%400%407b%40bfloat16"
	q, _ := http.NewRequest("PUT", "http://"+a.At("s3")+object, strings.NewReader("chunk"))
	if r, err := http.DefaultClient.Do(q); err != nil || r.StatusCode != 200 {
		t.Fatal(r, err)
	} else {
		r.Body.Close()
	}
	for _, method := range []string{"HEAD", "GET"} {
		awaitThat(t, method+" of the object", func() bool {
			q, _ := http.NewRequest(method, "http://"+b.At("s3")+object, nil)
			r, err := http.DefaultClient.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Body.Close()
			body, _ := io.ReadAll(r.Body)
			return r.StatusCode == 200 && r.ContentLength == 5 && (method == "HEAD" || string(body) == "chunk")
		})
	}
}
