package kvcached

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/hicache"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// sglangPages returns the keys of a prompt's four pages of 64 tokens of an SGLang with one rank,
// and what an agent tells of them (kv/hicache/testdata/make_pages.py).
func sglangPages(t *testing.T) (keys []string, r *pb.TellChunksRequest) {
	t.Helper()
	var golden struct {
		Prompts []struct {
			Tokens []uint32
			Hashes []string
		}
	}
	text, err := os.ReadFile("../kv/hicache/testdata/pages.json")
	if err == nil {
		err = json.Unmarshal(text, &golden)
	}
	if err != nil {
		t.Fatal(err)
	}
	p := golden.Prompts[0]
	for _, h := range p.Hashes {
		keys = append(keys, h+"_org-m_0_1_k", h+"_org-m_0_1_v")
	}
	r = &pb.TellChunksRequest{Scheme: string(alias.HiCache), Keys: "key1;s3.kvcache;", Model: "org-m", World: 1,
		Halves: true, Variant: "bfloat16", Served: "m", Revision: "-", Blocks: 4}
	hash, digest, parent := hicache.Hash{}, block.Seed("m", "", ""), block.Name{}
	for tokens := p.Tokens; len(tokens) >= 64; tokens = tokens[64:] {
		hash = hicache.Next(hash, tokens[:64])
		r.Names, r.Parents = append(r.Names, uint64(hash.Name())), append(r.Parents, parent[:]...)
		for i := range 4 {
			digest = block.Next(digest, (*[block.Tokens]uint32)(tokens[16*i:]))
			parent = block.NameOf(&digest)
			r.Digests = append(r.Digests, parent[:]...)
		}
	}
	return keys, r
}

// TestPagesCount stores a prompt's pages as SGLang's HiCache does by NIXL and tells what they stand
// for. They count here, on another host that reads them, and after a restart, until the model turns
// out to keep more than pages.
func TestPagesCount(t *testing.T) {
	keys, told := sglangPages(t)
	s := newSite(t)
	dir := t.TempDir()
	settingsA, _ := settings(t, dir, s.join("a", func(c *Config) { c.S3.Listen = "127.0.0.1:0" }))
	a, stop := begin(t, settingsA)
	b, _ := s.host(t, "b", func(c *Config) { c.S3.Listen = "127.0.0.1:0" })
	meet(t, 2, a, b)
	do := func(d *Daemon, method, key string) int {
		return tierObject(t, d.At("s3"), "cognitora", method, key, strings.Repeat("x", 300<<10))
	}
	for _, key := range keys {
		if code := do(a, http.MethodPut, key); code != 200 {
			t.Fatal(code)
		}
	}
	r, err := kv(t, a).TellChunks(t.Context(), told)
	if err != nil || r.Taken != 4 || !strings.HasPrefix(r.Namespace, "kv1;m;-;bfloat16;chunks.hicache.") {
		t.Fatal(r, err)
	}
	if host, disk := counted(t, a); host != 16 || disk != 0 {
		t.Errorf("%d blocks count in RAM and %d on SSD, %+v", host, disk, a.chunks.Stats())
	}
	for _, key := range keys {
		awaitThat(t, "the other host has the page", func() bool { return do(b, http.MethodGet, key) == 200 })
		do(a, http.MethodGet, key) // the first read brings it to SSD
	}
	if host, _ := counted(t, b); host != 16 {
		t.Errorf("%d blocks count on the other host, %+v", host, b.chunks.Stats())
	}
	awaitThat(t, "SSD has the pages", func() bool { _, disk := counted(t, a); return disk == 16 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	a, _ = begin(t, settingsA)
	awaitThat(t, "the pages on SSD count", func() bool { _, disk := counted(t, a); return disk == 16 })
	if code := do(a, http.MethodDelete, keys[7]); code != http.StatusNoContent {
		t.Error(code)
	}
	if _, disk := counted(t, a); disk != 12 {
		t.Errorf("%d blocks without a half of the last page, %+v", disk, a.chunks.Stats())
	}
	do(a, http.MethodPut, strings.Replace(keys[0], "_k", "_swa_k", 1))
	if host, disk := counted(t, a); host+disk != 0 || a.chunks.Stats().Beside != 1 {
		t.Error(fmt.Sprintf("%d and %d blocks of a model with sliding windows", host, disk), a.chunks.Stats())
	}
}
