package engine

import (
	"strings"
	"testing"
)

// TestPagesInStore checks the arguments of an SGLang whose hierarchical cache keeps pages at the S3
// listener. HiCacheNixl of SGLang 0.5.23 with NIXL 1.5.1 has stored pages with these settings, the
// threshold and the policy aside.
func TestPagesInStore(t *testing.T) {
	c := valid(func(c *Config) {
		c.Kind, c.KVOffload, c.Model, c.Offload.HiCacheStorage = SGLang, OffloadHiCache, "org/m", "kvcached"
	})
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	const want = "--enable-hierarchical-cache --hicache-ratio 2 --hicache-write-policy write_through " +
		"--hicache-mem-layout page_first --hicache-storage-backend nixl --hicache-storage-backend-extra-config " +
		`{"plugin":{"obj":{"bucket":"kvcache","endpoint_override":"127.0.0.1:9000","scheme":"http",` +
		`"access_key":"cognitora","secret_key":"cognitora","active":true,"use_virtual_addressing":"false"}},` +
		`"prefetch_threshold":PAGE} ` +
		"--hicache-storage-prefetch-policy wait_complete"
	with := func(page string) string { return strings.Replace(want, "PAGE", page, 1) }
	argv, _ := c.Command(Launch{Port: 1})
	if got := strings.Join(argv, " "); !strings.HasSuffix(got, with("64")+" --page-size 64") {
		t.Error(got)
	}
	c.Args = []string{"--page-size=32", "--served-model-name", "chat"}
	argv, _ = c.Command(Launch{Port: 1})
	if got := strings.Join(argv, " "); !strings.HasSuffix(got, with("32")+" --page-size=32 --served-model-name chat") {
		t.Error(got)
	}
	if got := c.Pages(); got != (Pages{Bucket: "kvcache", Model: "chat", Layout: "page_first"}) {
		t.Errorf("%+v", got)
	}
	c.Offload.HiCacheStorage, c.Args = "nixl", []string{"--pp-size", "2", "--kv-cache-dtype=fp8_e4m3",
		"--hicache-mem-layout", "page_head"}
	if got := c.Pages(); got != (Pages{Model: "org/m", DType: "fp8_e4m3", Layout: "page_head", Shared: "--pp-size"}) {
		t.Errorf("%+v", got)
	}
}
