package engine

import (
	"cmp"
	"encoding/json"
	"strconv"
)

// hiCacheKVCached is the value of hicache_storage for this host's cgn-kvcached.
const hiCacheKVCached = "kvcached"

// pageSize is the argument with the number of tokens in a page; 1 is SGLang's own default.
const (
	pageSize   = "--page-size"
	pageTokens = 64 // without the argument
)

// memLayout is the argument with the layout of pages in memory, and keptLayout that of pages that
// the agent has an SGLang keep at the S3 listener.
const (
	memLayout  = "--hicache-mem-layout"
	keptLayout = "page_first"
)

// pagesInStore returns the arguments with which an SGLang's hierarchical cache keeps pages at the
// S3 listener, by NIXL. SGLang then loads all that counts: a single page too (by default it asks
// for 256 tokens at least), and to the end (by default it may stop before).
func (c *Config) pagesInStore() []string {
	o := &c.Offload
	type plugin struct {
		store
		Active  bool   `json:"active"`
		Virtual string `json:"use_virtual_addressing"` // true would put the bucket before the endpoint's name
	}
	size, err := strconv.Atoi(c.arg(pageSize))
	if err != nil {
		size = pageTokens
	}
	text, err := json.Marshal(struct {
		Plugin    map[string]plugin `json:"plugin"`
		Threshold int               `json:"prefetch_threshold"` // tokens
	}{map[string]plugin{
		"obj": {store{o.S3Bucket, o.S3Endpoint, "http", openSecret, openSecret}, true, "false"}}, size})
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	argv := []string{memLayout, keptLayout, "--hicache-storage-backend", "nixl",
		"--hicache-storage-backend-extra-config", string(text), "--hicache-storage-prefetch-policy", "wait_complete"}
	if c.arg(pageSize) == "" {
		argv = append(argv, pageSize, strconv.Itoa(pageTokens))
	}
	return argv
}

// Pages says how an SGLang's hierarchical cache names the pages that it keeps at the S3 listener.
type Pages struct {
	Bucket string // empty: the agent has started no SGLang that keeps pages there
	Model  string // the name by which the SGLang serves its model
	DType  string // --kv-cache-dtype; empty: none is given
	Layout string // --hicache-mem-layout; empty: none is given
	Shared string // argument with ranks that the keys do not name; empty: there is none
}

// Pages returns what the configuration says about an SGLang's pages.
func (c *Config) Pages() Pages {
	p := Pages{Model: cmp.Or(c.arg("--served-model-name"), c.Model), DType: c.arg("--kv-cache-dtype"),
		Layout: c.arg(memLayout)}
	if c.Spawns() && c.KVOffload == OffloadHiCache && c.Offload.HiCacheStorage == hiCacheKVCached {
		p.Bucket, p.Layout = c.Offload.S3Bucket, keptLayout
	}
	for _, name := range []string{"--pp-size", "--pipeline-parallel-size", "--attn-cp-size",
		"--attention-context-parallel-size"} {
		if n := c.arg(name); n != "" && n != "1" {
			p.Shared = name
		}
	}
	return p
}
