package kvcached

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/lmcache"
	"github.com/cognitora/dataplane/kv/residency"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// recordedChunks returns the keys of a real LMCache's chunks, and what an agent tells of them: two
// chunks of 256 tokens.
func recordedChunks(t *testing.T) (keys []string, r *pb.TellChunksRequest) {
	t.Helper()
	var golden struct {
		Prompt []uint32
		Keys   []string `json:"keys_seen"`
	}
	text, err := os.ReadFile("../kv/lmcache/testdata/chunk_names.json")
	if err == nil {
		err = json.Unmarshal(text, &golden)
	}
	if err != nil || len(golden.Keys) != 4 {
		t.Fatal(err, golden.Keys)
	}
	name, digest := lmcache.First("0"), block.Seed("tiny", "", "")
	r = &pb.TellChunksRequest{Scheme: string(alias.LMCache), Keys: "key1;resp.0;", Model: "MODEL", Dtype: "float",
		World: 1, Halves: true, First: uint64(name), Served: "tiny", Revision: "-", Blocks: 16}
	var parent block.Name
	for tokens := golden.Prompt; len(tokens) >= 256; tokens = tokens[256:] {
		name = lmcache.Next(name, tokens[:256])
		r.Names, r.Parents = append(r.Names, uint64(name)), append(r.Parents, parent[:]...)
		for i := range 16 {
			digest = block.Next(digest, (*[block.Tokens]uint32)(tokens[16*i:]))
			parent = block.NameOf(&digest)
			r.Digests = append(r.Digests, parent[:]...)
		}
	}
	return golden.Keys, r
}

// counted returns how many blocks of 16 tokens routers learn of in each tier of a daemon, all in
// their places in one prompt.
func counted(t *testing.T, d *Daemon) (host, disk int) {
	t.Helper()
	w := d.index.Watch(residency.WatchOptions{})
	defer w.Close()
	seen := map[uint32]bool{}
	for b := (residency.Batch{}); b.Part != residency.Synced; {
		if err := w.Next(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		for _, k := range b.Blocks {
			if k.Tiers == 0 {
				delete(seen, k.Position)
				continue
			}
			if k.Position == 0 {
				continue // its place is not known yet
			}
			seen[k.Position] = true
			if k.Tiers&residency.Host != 0 {
				host++
			}
			if k.Tiers&residency.Disk != 0 {
				disk++
			}
		}
	}
	for i := range len(seen) {
		if !seen[uint32(i+1)] {
			t.Errorf("no block has position %d of %d", i+1, len(seen))
		}
	}
	return host, disk
}

// TestLMCacheCounts stores the recorded chunks of a real LMCache over RESP and tells what they
// stand for. They count here, on another host that reads them, and after a restart, in each tier.
func TestLMCacheCounts(t *testing.T) {
	keys, told := recordedChunks(t)
	s := newSite(t)
	dir := t.TempDir()
	settingsA, _ := settings(t, dir, s.join("a", nil))
	a, stop := begin(t, settingsA)
	b, _ := s.host(t, "b", nil)
	meet(t, 2, a, b)
	for i, key := range keys {
		redis(t, a.At("resp"), fmt.Sprintf("SET %s %s", key, strings.Repeat("x", 28+3000*i)))
	}
	if st := a.chunks.Stats(); st.Untold != 2 || st.Parts != 4 {
		t.Errorf("%+v", st)
	}
	if r, err := kv(t, a).TellChunks(t.Context(), told); err != nil || r.Taken != 2 {
		t.Fatal(r, err)
	}
	if host, disk := counted(t, a); host != 32 || disk != 0 {
		t.Errorf("%d blocks count in RAM and %d on SSD", host, disk)
	}
	awaitThat(t, "the notes are kept", func() bool {
		for _, key := range keys {
			info, err := a.store.Describe(t.Context(), block.OfKey(block.IDOf(told.Keys), []byte(key)))
			if _, _, noted := alias.CutNote(info.Item.Attr); err != nil || noted != strings.HasSuffix(key,
				"metadata") {
				return false
			}
		}
		return true
	})
	for _, key := range keys {
		awaitThat(t, "the other host has the part", func() bool {
			return len(redis(t, b.At("resp"),
				"GET "+key)[0]) >= 28
		})
	}
	if host, _ := counted(t, b); host != 32 {
		t.Errorf("%d blocks count on the other host, %+v", host, b.chunks.Stats())
	}
	for _, key := range keys {
		redis(t, a.At("resp"), "GET "+key) // the first read brings it to SSD
	}
	awaitThat(t, "SSD has the chunks", func() bool { _, disk := counted(t, a); return disk == 32 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	a, _ = begin(t, settingsA)
	awaitThat(t, "the chunks on SSD count", func() bool { _, disk := counted(t, a); return disk == 32 })
	if host, _ := counted(t, a); host != 0 {
		t.Errorf("%d blocks in RAM after a restart", host)
	}
	meet(t, 2, a)
	redis(t, a.At("resp"), "DEL "+keys[2])
	if host, disk := counted(t, a); host != 0 || disk != 16 {
		t.Errorf("%d and %d blocks without a part of the second chunk, %+v", host, disk, a.chunks.Stats())
	}
}

// TestLMCacheOverS3 tells what a chunk over S3 stands for. The object's headers stay as they were.
func TestLMCacheOverS3(t *testing.T) {
	_, told := recordedChunks(t)
	c, _ := settings(t, t.TempDir(), nil)
	d, _ := begin(t, c)
	told.Keys, told.Halves, told.Dtype = "key1;s3.chunks;", false, "bfloat16"
	url := fmt.Sprintf("http://%s/chunks/MODEL%%401%%400%%40%x%%40bfloat16", d.At("s3"), told.Names[0])
	head := func() http.Header {
		r, err := http.Head(url)
		if err != nil || r.StatusCode != 200 {
			t.Fatal(r, err)
		}
		r.Body.Close()
		r.Header.Del("Date")
		r.Header.Del("X-Amz-Request-Id")
		r.Header.Del("X-Amz-Id-2")
		return r.Header
	}
	q, _ := http.NewRequest("PUT", url, strings.NewReader(strings.Repeat("x", 10_000)))
	q.Header.Set("x-amz-meta-mine", "1")
	q.Header.Set("Content-Type", "application/octet-stream")
	r, err := http.DefaultClient.Do(q)
	if err != nil || r.StatusCode != 200 {
		t.Fatal(r, err)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	r.Body.Close()
	before := head()
	if r, err := kv(t, d).TellChunks(t.Context(), told); err != nil || r.Taken != 2 {
		t.Fatal(r, err)
	}
	if host, _ := counted(t, d); host != 16 {
		t.Errorf("%d blocks count, %+v", host, d.chunks.Stats())
	}
	key := fmt.Sprintf("MODEL@1@0@%x@bfloat16", told.Names[0])
	awaitThat(t, "the note is kept", func() bool {
		info, err := d.store.Describe(t.Context(), block.OfKey(block.IDOf(told.Keys), []byte(key)))
		_, _, noted := alias.CutNote(info.Item.Attr)
		return err == nil && noted
	})
	if after := head(); fmt.Sprint(after) != fmt.Sprint(before) || after.Get("x-amz-meta-mine") != "1" {
		t.Errorf("headers were %v and are %v", before, after)
	}
}
