package agent

import (
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/vllmtier"
)

// TestTierSettings checks what the agent tells a cache daemon of vLLM's own tiers.
func TestTierSettings(t *testing.T) {
	c := valid(func(c *Config) {
		c.Engine.URL, c.Engine.Kind, c.Engine.KVOffload, c.Engine.Model = "", "vllm", "nixl+kvcached-s3", "org/m"
		c.Engine.Offload.CPUBytes, c.Engine.Offload.NIXLPort, c.Engine.Offload.Revision = 1<<30, 5600, "r"
		c.Engine.Offload.S3Endpoint, c.Engine.Offload.S3Bucket = "127.0.0.1:9000", "blocks"
		c.Events = EventsConfig{Endpoint: "tcp://127.0.0.1:5557", Report: "/run/kv.sock", MaxBlocks: 1}
	})
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	want := alias.Source{Keys: "key1;s3.blocks;", Model: vllmtier.Client("gpu1-9081"),
		Scheme: alias.VLLMTier, World: 1, Served: "-", Revision: "r"}
	if got, _, err := c.units()[0].chunks("gpu1-9081", nil); err != nil || got == nil || got.Source != want {
		t.Errorf("%+v %v, want %+v", got, err, want)
	}
	c.Engine.KVOffload = "nixl"
	if got, why, err := c.units()[0].chunks("gpu1-9081", nil); err != nil || why != "" || got != nil {
		t.Errorf("another connector: %+v %q %v", got, why, err)
	}
}
