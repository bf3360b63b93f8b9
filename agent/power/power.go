// Package power measures this host's power, in watts, from all available sources: the BMC by
// Redfish or DCMI, the GPUs, and the CPUs' RAPL counters. Every reading carries its source and its
// time. A stale reading is unknown, never zero.
package power

import "time"

// component is the part of the host that a reading measures.
type component int

const (
	chassis component = iota // the whole machine at its inlet, by Redfish
	psu                      // the sum of its power supplies' inputs, by Redfish
	system                   // the whole machine, by DCMI
	gpu                      // all GPUs
	cpu                      // all CPU packages
	dram                     // the packages' memory, if RAPL counts it separately
	components
)

var names = [components]string{"chassis", "psu", "system", "gpu", "cpu", "dram"}

// sourceOf is the source of each component; the reference of metrics repeats it.
var sourceOf = [components]string{"redfish", "redfish", "dcmi", "nvml", "rapl", "rapl"}

// gpuAndCPU is the source of the sum of both components.
const gpuAndCPU = "nvml+rapl"

// Node is the component name of the whole host.
const Node = "node"

// Reading is one measurement.
type Reading struct {
	Component string // node, chassis, psu, system, gpu, cpu or dram
	Source    string // redfish, dcmi, nvml or rapl; the sources of a sum are joined with +
	Watts     float64
	Mean      float64   // time-weighted mean of the last 30 s
	At        time.Time // when it was taken; of a sum, the oldest reading's time
}

// Age returns how old the reading is, by the monotonic clock.
func (r Reading) Age() time.Duration { return time.Since(r.At) }

// state holds the meter's readings; its owner guards it.
type state struct {
	start    time.Time
	hold     time.Duration // age at which a reading is stale
	series   [components]series
	watts    [components]float64
	at       [components]time.Duration
	known    [components]bool // a reading has been taken
	expected [components]bool // the host has this component, so a sum without its reading is not the host's power
}

func (s *state) now() time.Duration { return time.Since(s.start) }

func (s *state) add(c component, at time.Duration, watts float64) {
	if s.known[c] && at < s.at[c] {
		return
	}
	s.watts[c], s.at[c], s.known[c], s.expected[c] = watts, at, true, true
	s.series[c].add(at, watts)
}

// of returns the last reading of c, if it is fresh.
func (s *state) of(c component, now time.Duration) (r Reading, fresh bool) {
	if !s.known[c] || now-s.at[c] > s.hold {
		return r, false
	}
	mean, _ := s.series[c].mean(now, s.hold)
	return Reading{names[c], sourceOf[c], s.watts[c], mean, s.start.Add(s.at[c])}, true
}

// node returns the host's power: the chassis' by the BMC, or else the power supplies', or else
// DCMI's, or else the sum of the components that the host is known to have. The sum is unknown if
// one of these components has no fresh reading.
func (s *state) node(now time.Duration) (r Reading, known bool) {
	for _, c := range []component{chassis, psu, system} {
		if r, fresh := s.of(c, now); fresh {
			r.Component = Node
			return r, true
		}
	}
	for _, c := range []component{gpu, cpu, dram} {
		part, fresh := s.of(c, now)
		if !fresh {
			if s.expected[c] {
				return Reading{}, false
			}
			continue
		}
		switch {
		case !known:
			r, known = part, true
			continue
		case part.At.Before(r.At):
			r.At = part.At
		}
		if part.Source == "rapl" && r.Source != "rapl" && c == cpu {
			r.Source = gpuAndCPU
		}
		r.Watts, r.Mean = r.Watts+part.Watts, r.Mean+part.Mean
	}
	r.Component = Node
	return r, known
}
