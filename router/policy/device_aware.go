package policy

import "fmt"

// DeviceAwareSettings are the settings of mode device_aware, for fleets of CPUs and accelerators.
// The mode compares the requests per node of both groups. Then it takes the least loaded node of
// the group that is behind its share.
type DeviceAwareSettings struct {
	// Ratio is the number of requests that an accelerator takes for each request of a CPU.
	Ratio float64 `json:"ratio" range:"1..1000000"`
}

// group is the nodes of one device class that have room.
type group struct{ nodes, requests int64 }

func (p *DeviceAwareSettings) pick(s *Situation, e *Explanation) int {
	var groups [2]group // by class
	for i := range s.Candidates {
		if c := &s.Candidates[i]; c.Room() {
			g := &groups[c.class()]
			g.nodes++
			g.requests += c.busy()
		}
	}
	cpu, accel := &groups[cpus], &groups[accelerators]
	chosen := accelerators
	if accel.nodes == 0 || p.behind(cpu, accel) {
		chosen = cpus
	}
	pick := least(s, chosen)
	if e != nil && pick >= 0 {
		e.Why = fmt.Sprintf("least loaded of %d %s, %s; %d requests on %d CPUs, %d on %d accelerators, ratio %g",
			groups[chosen].nodes, chosen, s.Candidates[pick].load(), cpu.requests, cpu.nodes, accel.requests,
			accel.nodes, p.Ratio) + s.decided(pick, chosen)
	}
	return pick
}

// behind says whether the CPUs have less than their share of the requests.
func (p *DeviceAwareSettings) behind(cpu, accel *group) bool {
	return float64(cpu.requests) < float64(accel.requests)*float64(cpu.nodes)/(p.Ratio*float64(accel.nodes))
}

// class is a set of devices.
type class uint8

const (
	accelerators class = iota
	cpus
	anyDevice
)

func (c class) String() string {
	if c == cpus {
		return "CPUs"
	}
	return "accelerators"
}

func (c *Candidate) class() class {
	if c.CPU {
		return cpus
	}
	return accelerators
}
