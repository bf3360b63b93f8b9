package agent

import (
	"strings"

	"github.com/cognitora/dataplane/agent/engine"
	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/listen"
)

// validateApart refuses two engines that share a port, a GPU or another resource that only one
// engine can use. validateListeners compares their listening addresses.
func validateApart(p *problems, units []*unit) {
	for i, u := range units {
		for _, other := range units[:i] {
			u.apartFrom(p, other)
		}
	}
}

func (u *unit) apartFrom(p *problems, other *unit) {
	for _, f := range []struct{ key, value, others string }{
		{"id", u.ID, other.ID}, {"pid_file", u.Engine.PIDFile, other.Engine.PIDFile},
		{"kv_events.endpoint", u.Events.Endpoint, other.Events.Endpoint}, {"kv_events.replay", u.Events.Replay, other.Events.Replay},
	} {
		if f.value != "" && f.value == f.others {
			p.add(u.name(f.key), "%q is %s too; give each engine its own", f.value, other.name(f.key))
		}
	}
	key, at := u.engineAt()
	otherKey, otherAt := other.engineAt()
	if listen.Overlap(at, otherAt) && basePath(u) == basePath(other) {
		p.add(u.name(key), "%s is the engine of %s too; an engine is one node: remove one of them, or give the other "+
			"engine's address", at, other.name(otherKey))
	}
	for _, name := range u.GPUs {
		for _, others := range other.GPUs {
			if sameGPU(name, others) {
				p.add(u.name("gpus"), "%q is in %s too; a GPU, or GPU instance, belongs to one engine", name,
					other.name("gpus"))
			}
		}
	}
	if from, to := u.nixlPorts(); from > 0 {
		if otherFrom, otherTo := other.nixlPorts(); otherFrom > 0 && from <= otherTo && otherFrom <= to {
			p.add(u.name("offload.nixl_port"), "%d to %d, one for each rank, are of %s too; give each engine its own",
				from, to, other.name("offload.nixl_port"))
		}
	}
	if port := u.bootstrapPort(); port > 0 && port == other.bootstrapPort() {
		p.add(u.name("bootstrap"), "port %d is that of %s too; give each engine's bootstrap server its own, such as "+
			"bootstrap = \":%d\"", port, other.name("bootstrap"), port+1)
	}
}

func (u *unit) bootstrapPort() int { return u.Engine.BootstrapPort(u.Role) }

func basePath(u *unit) string {
	a, err := address.Parse(u.Engine.URL)
	if err != nil {
		return ""
	}
	return a.BasePath
}

// sameGPU tells whether two names mean the same device, or a GPU and an instance of that GPU.
// sameGPU does not compare an index with a UUID.
func sameGPU(a, b string) bool {
	return strings.EqualFold(a, b) || strings.HasPrefix(a, b+":") || strings.HasPrefix(b, a+":")
}

// nixlPorts returns the ports of a started engine's NIXL side channel; 0: the engine has no side
// channel.
func (u *unit) nixlPorts() (from, to int) {
	if !u.Engine.Spawns() || u.Engine.Kind != engine.VLLM || !strings.Contains(u.Engine.KVOffload, engine.OffloadNIXL) {
		return 0, 0
	}
	return u.Engine.Offload.NIXLPort, u.Engine.Offload.NIXLPort + max(u.TP, 1)*max(u.DataParallel, 1) - 1
}
