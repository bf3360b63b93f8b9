package cluster

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestCacheHealth(t *testing.T) {
	h := CacheHealth{CacheID: "gpu1", QUIC: "10.0.0.7:7072", GRPC: "unix:///run/cognitora/kv.sock", RAMBytes: 1 << 30,
		Ready: true}
	value, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	back, err := ParseCacheHealth("gpu1", value)
	if err != nil || *back != h {
		t.Fatalf("%s reads as %+v, %v", value, back, err)
	}
	for _, c := range []struct{ id, value, want string }{
		{"gpu2", string(value), "cache_id"},
		{"gpu1", `{"cache_id":"gpu1","quic":"10.0.0.7"}`, "quic"},
		{"gpu1", `{"cache_id":"gpu1","tls":":7"}`, "tls"},
		{"gpu1", `{"cache_id":"gpu1","grpc":"http://a"}`, "grpc"},
		{"gpu1", `{"cache_id":"gpu1","ram_bytes":-1}`, "ram_bytes"},
		{"a b", `{"cache_id":"a b"}`, "cache id"},
		{"gpu1", `[`, "cache gpu1"},
		{"gpu1", strings.Repeat(" ", maxValueBytes+1), "bytes"},
	} {
		if _, err := ParseCacheHealth(c.id, []byte(c.value)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40s: %v", c.value, err)
		}
	}
}
