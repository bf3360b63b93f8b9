package kvcached

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/vllmtier"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/router/holdings"
)

// tierObject asks the S3 listener for an object, as the engine of a node does.
func tierObject(t *testing.T, at, node, method, key, body string) int {
	t.Helper()
	r, err := http.NewRequest(method, "http://"+at+"/kvcache/"+key, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+vllmtier.Client(node)+
		"/20261128/us-east-1/s3/aws4_request, SignedHeaders=host, Signature="+strings.Repeat("0", 64))
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode
}

// tierElsewhere checks that the told objects of one daemon count as shared for an engine of the
// other daemon's host that reads such objects.
func tierElsewhere(t *testing.T, a, b *Daemon, told *pb.TellChunksRequest) {
	t.Helper()
	none := vllmtier.Key{Base: "_models_tiny_36b546008f22", Hash: fmt.Sprintf("%064x", 2)}
	if code := tierObject(t, b.At("s3"), "gpu2", http.MethodHead, string(none.Append(nil)), ""); code != 404 {
		t.Fatal(code)
	}
	r, err := kv(t, b).TellChunks(t.Context(), &pb.TellChunksRequest{Keys: told.Keys, Engine: vllmtier.Client("gpu2"),
		Scheme: told.Scheme, World: told.World, Served: told.Served, Revision: told.Revision, Blocks: told.Blocks})
	if err != nil {
		t.Fatal(err)
	}
	reading(t, b, "gpu2", r.Namespace)
	m := follows(t, holdings.PromoteFleet, map[string]*Daemon{"a": a, "b": b})
	chain, _ := recordedPrompt(t)
	awaitThat(t, "the objects count as shared for an engine of the other host", func() bool {
		var q holdings.Query
		q.Begin(m, "tiny")
		q.Node("gpu2", "b")
		m.Match(chain, &q)
		return q.Reach[0] == holdings.Reach{Shared: 32}
	})
}

// TestTierCounts stores a prompt's blocks as vLLM's object tier does and tells what they stand for.
// They count here, on another host that reads them, and after a restart.
func TestTierCounts(t *testing.T) {
	_, told := recordedChunks(t)
	told.Keys, told.Scheme, told.Dtype = "key1;s3.kvcache;", string(alias.VLLMTier), ""
	told.Halves, told.First = false, 0
	told.Model, told.Engine = "", vllmtier.Client("gpu1")
	var keys []string
	for _, name := range told.Names {
		k := vllmtier.Key{Base: "_models_tiny_36b546008f22", Hash: fmt.Sprintf("%048x%016x", 1, name)}
		keys = append(keys, string(k.Append(nil)))
	}
	s := newSite(t)
	dir := t.TempDir()
	settingsA, _ := settings(t, dir, s.join("a", func(c *Config) { c.S3.Listen = "127.0.0.1:0" }))
	a, stop := begin(t, settingsA)
	b, _ := s.host(t, "b", func(c *Config) { c.S3.Listen = "127.0.0.1:0" })
	meet(t, 2, a, b)
	if _, err := kv(t, a).TellChunks(t.Context(), told); grpcstatus.Code(err) != codes.FailedPrecondition {
		t.Fatal(err)
	}
	if code := tierObject(t, a.At("s3"), "gpu1", http.MethodHead, keys[0], ""); code != http.StatusNotFound {
		t.Fatal(code)
	}
	if r, err := kv(t, a).TellChunks(t.Context(), told); err != nil || r.Taken != 2 {
		t.Fatal(r, err)
	}
	for _, key := range keys {
		if code := tierObject(t, a.At("s3"), "gpu1", http.MethodPut, key, strings.Repeat("x", 300<<10)); code != 200 {
			t.Fatal(code)
		}
	}
	if host, disk := counted(t, a); host != 32 || disk != 0 {
		t.Errorf("%d blocks count in RAM and %d on SSD, %+v", host, disk, a.chunks.Stats())
	}
	tierElsewhere(t, a, b, told)
	for _, key := range keys {
		awaitThat(t, "the other host has the object", func() bool {
			return tierObject(t, b.At("s3"), "gpu2", http.MethodGet, key, "") == 200
		})
	}
	if host, _ := counted(t, b); host != 32 {
		t.Errorf("%d blocks count on the other host, %+v", host, b.chunks.Stats())
	}
	for _, key := range keys {
		tierObject(t, a.At("s3"), "gpu1", http.MethodGet, key, "") // the first read brings it to SSD
	}
	awaitThat(t, "SSD has the objects", func() bool { _, disk := counted(t, a); return disk == 32 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	a, _ = begin(t, settingsA)
	awaitThat(t, "the objects on SSD count", func() bool { _, disk := counted(t, a); return disk == 32 })
	if code := tierObject(t, a.At("s3"), "gpu1", http.MethodDelete, keys[1], ""); code != http.StatusNoContent {
		t.Error(code)
	}
	if host, disk := counted(t, a); host != 0 || disk != 16 {
		t.Errorf("%d and %d blocks without the second object, %+v", host, disk, a.chunks.Stats())
	}
}
