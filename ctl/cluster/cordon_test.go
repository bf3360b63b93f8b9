package cluster

import (
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/load"
)

// The agent's clock may differ from the operator's by hours.
func TestDrainedIsWhatALaterHeartbeatSays(t *testing.T) {
	node := func(stamp int64, inFlight load.Gauge) *cluster.Node {
		return &cluster.Node{ID: "n1", Health: &cluster.NodeHealth{
			Stamp: stamp, Load: load.Load{Engine: load.Engine{InFlight: inFlight}},
		}}
	}
	for name, c := range map[string]struct {
		now, before *cluster.Node
		want        int
	}{
		"no news":            {node(5, load.Known(0)), node(5, load.Known(0)), -1},
		"news":               {node(6, load.Known(0)), node(5, load.Known(3)), 0},
		"news from the past": {node(1, load.Known(2)), node(5, load.Known(3)), 2},
		"does not say":       {node(6, load.Gauge{}), node(5, load.Gauge{}), -1},
		"gone":               {nil, node(5, load.Known(3)), 0},
		"unreadable":         {&cluster.Node{ID: "n1"}, node(5, load.Known(0)), -1},
		"came meanwhile":     {node(6, load.Known(1)), nil, 1},
	} {
		if got := drainLeft(c.now, c.before); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestStatesOfNodes(t *testing.T) {
	ready := func(role cluster.Role) *cluster.NodeHealth { return &cluster.NodeHealth{Ready: true, Role: role} }
	for want, row := range map[string]nodeRow{
		"ready": {Health: ready(cluster.RoleBoth)}, "ready, unused": {Health: ready(cluster.RolePrefill)},
		"not ready": {Health: &cluster.NodeHealth{}}, "unusable": {}, "cordoned": {Health: ready(cluster.RolePrefill), Cordon: &cluster.Cordon{}},
	} {
		if got := row.state(); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestRoleHasTheConnector: a node whose connector is known is of use as a prefill node.
func TestRoleHasTheConnector(t *testing.T) {
	for want, h := range map[string]*cluster.NodeHealth{
		"both": {Role: cluster.RoleBoth, Engine: "vllm"}, "prefill (nixl)": {Role: cluster.RolePrefill, Engine: "vllm"},
		"decode (mooncake)": {Role: cluster.RoleDecode, Engine: "vllm", Connector: "mooncake"},
	} {
		h.Ready = true
		row := nodeRow{Health: h}
		if got := roleCell(h); got != want || row.state() != "ready" {
			t.Errorf("%s, %s: want %s", got, row.state(), want)
		}
	}
}

func TestHalfAnEtcdLoginIsAnError(t *testing.T) {
	for flag, want := range map[string]string{
		"--etcd-key=k": "etcd.cert and etcd.key", "--etcd-user=u": "etcd.password_file",
		"--etcd-ca=/nowhere": "etcd.ca",
	} {
		if _, err := ctl(t, nil, "cluster", "nodes", flag); err == nil || !strings.Contains(err.Error(), want) ||
			ctltest.Hint(err) == "" {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

func TestSlotsThatNobodyAnnounces(t *testing.T) {
	for slots, want := range map[[2]int]string{{}: "-", {64, 0}: "64", {0, 48}: "- (48)", {64, 48}: "64 (48)"} {
		if got := slotsCell(&cluster.NodeHealth{MaxConcurrent: slots[0], EngineSlots: slots[1]}); got != want {
			t.Errorf("%d slots: %q", slots, got)
		}
	}
}
