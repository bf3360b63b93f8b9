package disturb

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Mode is the kind of a run.
type Mode struct {
	Name, What string

	disturbed bool   // with hogs and packet loss
	signals   bool   // agents measure, and the router watches its connections
	policy    string // policy of the router
}

// modes in the order of the runs
var modes = []Mode{
	{Name: "undisturbed", What: "the fleet without hogs, loss and signals", policy: "{}"},
	{Name: "off", What: "hogs and loss without signals: agents have `--telemetry off`, the router `watch_nodes = false` and no `kernel_events`", disturbed: true, policy: "{}"},
	{Name: "suspicion", What: "signals with the default policy: `watch_nodes` and `kernel_events` make nodes suspect, and the score leaves the agents' figures out", disturbed: true, signals: true, policy: "{}"},
	{Name: "on", What: "signals that count in the score, by the policy `%s`", disturbed: true, signals: true},
}

// Modes lists the names of the modes.
func Modes() []string {
	var all []string
	for _, m := range modes {
		all = append(all, m.Name)
	}
	return all
}

// Config of Run. A zero field means its value in Default.
type Config struct {
	Bin    string   // folder of cgn-router, cgn-agent and cgn-ctl
	Modes  []string // empty: all
	Rounds int      // runs of each mode, in turn
	Policy string   // policy of the mode on

	Nodes int     // number of nodes; the first gets the hogs, the second the loss
	Hogs  int     // processes that never sleep
	Loss  float64 // share of lost packets, each way

	Trace    string  // file of the trace; empty: the generator's trace
	Requests int     // requests of each run
	Speed    float64 // factor of the trace's speed

	Progress io.Writer // gets progress messages; nil: none
}

// What all runs have in common.
const (
	nodeCPU       = 0.5 // share of one CPU for each node, including its hogs
	stepCPU       = 2 * time.Millisecond
	decodeStep    = 25 * time.Millisecond
	prefillRate   = 80000 // tokens per second of an engine
	maxConcurrent = 32    // requests of an engine
	mostInput     = 32768 // tokens of a prompt; requests with longer ones are left out
	mostOutput    = 128   // tokens of an answer
)

// Default returns the default configuration.
func Default() Config { return Config{}.withDefaults() }

// DefaultPolicy counts a node as fully loaded if its engine always waits for a CPU, or if 3 % of
// its segments are retransmitted.
const DefaultPolicy = `{"run_delay_ms":1000,"retransmit_pct":3}`

func (c Config) withDefaults() Config {
	if len(c.Modes) == 0 {
		c.Modes = Modes()
	}
	c.Rounds, c.Policy = cmp.Or(c.Rounds, 5), cmp.Or(c.Policy, DefaultPolicy)
	c.Nodes, c.Hogs, c.Loss = cmp.Or(c.Nodes, 6), cmp.Or(c.Hogs, 12), cmp.Or(c.Loss, 0.1)
	c.Requests, c.Speed = cmp.Or(c.Requests, 400), cmp.Or(c.Speed, 2)
	c.Progress = cmp.Or[io.Writer](c.Progress, io.Discard)
	return c
}

// Check returns an error that names an invalid field.
func (c Config) Check() error {
	c = c.withDefaults()
	for _, name := range c.Modes {
		if !slices.Contains(Modes(), name) {
			return fmt.Errorf("mode %q: must be some of %s", name, strings.Join(Modes(), ", "))
		}
	}
	switch {
	case c.Rounds < 1 || c.Requests < 1 || c.Hogs < 1:
		return fmt.Errorf("%d rounds of %d requests beside %d hogs: each must be 1 or more", c.Rounds, c.Requests,
			c.Hogs)
	case c.Nodes < 3 || c.Nodes > 32:
		return fmt.Errorf("%d nodes: must be 3 to 32, of which two are disturbed", c.Nodes)
	case !(c.Loss > 0 && c.Loss < 1):
		return fmt.Errorf("loss %v: must be above 0 and below 1", c.Loss)
	case !(c.Speed > 0):
		return fmt.Errorf("speed %v: must be above 0", c.Speed)
	}
	return nil
}

func (c *Config) mode(name string) Mode {
	m := modes[slices.IndexFunc(modes, func(m Mode) bool { return m.Name == name })]
	if m.policy == "" {
		m.policy, m.What = c.Policy, fmt.Sprintf(m.What, c.Policy)
	}
	return m
}

// Indexes of the disturbed nodes.
const (
	hogged = 0
	lossy  = 1
)

func nodeID(i int) string {
	return cmp.Or(map[int]string{hogged: "node-hog", lossy: "node-loss"}[i], "node-"+strconv.Itoa(i))
}
