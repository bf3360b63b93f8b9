package cluster

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/where"
)

const model = "sim"

// exactSuffix marks a mode in which the router knows the contents of caches instead of using the
// index.
const exactSuffix = "_exact"

// parseMode parses a mode of the policy as in its document, or score_exact.
func parseMode(name string) (m policy.Mode, exact bool, err error) {
	if strings.ReplaceAll(name, "-", "_") == policy.Score.String()+exactSuffix {
		return policy.Score, true, nil
	}
	m, err = policy.ParseMode(name)
	switch {
	case err != nil:
		return 0, false, fmt.Errorf("%q: must be some of %s, %s", name, strings.Join(Modes(), ", "), policy.DeviceAware)
	case m == policy.Direct:
		return 0, false, fmt.Errorf("%q: cannot be simulated, because simulated requests name no node", name)
	}
	return m, false, nil
}

// ModeName returns the name of a mode in the spelling of Modes. name may have every spelling that a
// policy document may have.
func ModeName(name string) (string, error) {
	m, exact, err := parseMode(name)
	if err != nil {
		return "", err
	}
	if exact {
		return m.String() + exactSuffix, nil
	}
	return m.String(), nil
}

// Modes returns the modes that differ in a simulation. Simulated requests name no node, as direct
// needs it. Simulated nodes have one device class, for which device_aware is least_loaded.
func Modes() []string {
	all := slices.DeleteFunc(policy.ModeNames(), func(name string) bool {
		return name == policy.Direct.String() || name == policy.DeviceAware.String()
	})
	return append(all, policy.Score.String()+exactSuffix)
}

// router has all parts of a router that pick a node. The struct router has no sockets.
type router struct {
	*leg.Dispatcher
	fleet   *fleet.Fleet
	index   *prefix.Index
	nodes   map[*fleet.Node]int
	members []*fleet.Node // by number
}

// newRouter makes the router with this number for the engines that have these heartbeats, all of
// them healthy.
func newRouter(c *Config, number int, p *policy.Policy, joining []*cluster.NodeHealth, now func() time.Time) (*router,
	error) {
	index := prefix.NewIndex(prefix.Options{MaxBlocks: c.IndexBlocks, Lifetime: c.Lifetime, Now: now, Inline: true})
	log := slog.New(slog.DiscardHandler)
	f, err := fleet.New(fleet.Options{Index: index, Logger: log})
	if err != nil {
		return nil, err
	}
	f.Beat(now(), joining...)
	r := &router{fleet: f, index: index, nodes: map[*fleet.Node]int{}, members: f.Load().Nodes}
	for i, n := range r.members {
		r.nodes[n] = i
	}
	if len(r.nodes) != c.Nodes {
		return nil, fmt.Errorf("the fleet took %d of %d nodes", len(r.nodes), c.Nodes)
	}
	chosen := &atomic.Pointer[policy.Policy]{}
	chosen.Store(p)
	dice := rand.New(rand.NewPCG(c.Seed, 1+uint64(number)))
	r.Dispatcher = leg.New(leg.Parts{
		Fleet: f, Where: &where.Finder{Index: index}, Policy: chosen, Gate: admission.New(admission.Options{}),
		Budget: admission.NewBudget(20, 64, now), Metrics: metrics.New(), Stored: affinity.New(1), Logger: log,
	}, leg.Options{
		Limits:   leg.Limits{FirstByte: time.Hour, Idle: time.Hour, Total: time.Hour},
		Feedback: true, Random: dice.Uint64, Unsampled: c.Unsampled, Disagg: c.Disagg,
	})
	return r, nil
}

// nodeName returns names that sort by number, so that a node's index in the snapshot is its number.
func nodeName(i int) string { return fmt.Sprintf("node-%04d", i) }
