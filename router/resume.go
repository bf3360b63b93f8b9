package router

import (
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/room"
	"github.com/cognitora/dataplane/router/plan"
)

// ResumeConfig sets whether another node goes on with a stream when its node is gone.
type ResumeConfig struct {
	Mode   string      `toml:"mode" default:"auto" flag:"resume" oneof:"auto|on|off" help:"whether another node goes on with a stream whose node is gone; auto: by token ids, which vLLM sends; on: also by text, which is not exact; off: the stream ends with an error event (docs/resume.md)"`
	Memory config.Size `toml:"memory" default:"256MiB" help:"most bytes of bodies, token ids and texts that are kept for streams that may go on, and at most half of limits.max_body_total, which counts kept bodies too; a stream that finds no room ends with an error event when its node is gone"`
}

func (c *ResumeConfig) validate(bad problem) {
	if c.Memory < 1<<20 {
		bad("router.resume.memory", "%s is too small; use 1MiB or more, or mode = \"off\"", c.Memory)
	}
}

// settings returns the settings for the planner. nodes is retry.max_nodes, and bodies is
// limits.max_body_total.
func (c *ResumeConfig) settings(nodes int, bodies config.Size) (o plan.Resume) {
	if c.Mode != "off" {
		memory := room.New(int64(min(c.Memory, bodies/2)))
		o = plan.Resume{Memory: memory, Text: c.Mode == "on", MaxNodes: nodes}
	}
	return o
}
