// Package power says what this host draws, in watts, from whoever measures it:
// the BMC by Redfish or DCMI, the GPUs, the CPUs' RAPL counters. Every reading
// carries its source and its time; one that is stale is unknown, never zero.
package power

import "time"

// component is what a reading is of.
type component int

const (
	chassis component = iota // the whole machine at its inlet, by Redfish
	psu                      // what its power supplies take in together, by Redfish
	system                   // the whole machine, by DCMI
	gpu                      // all GPUs
	cpu                      // all CPU packages
	dram                     // their memory, where RAPL counts it apart
	components
)

var names = [components]string{"chassis", "psu", "system", "gpu", "cpu", "dram"}

// sourceOf is who measures a component; the reference of metrics repeats it.
var sourceOf = [components]string{"redfish", "redfish", "dcmi", "nvml", "rapl", "rapl"}

// gpuAndCPU is the source of a sum of both.
const gpuAndCPU = "nvml+rapl"

// Node is the component that stands for the whole host.
const Node = "node"

// Reading is one measurement.
type Reading struct {
	Component string // node, chassis, psu, system, gpu, cpu or dram
	Source    string // redfish, dcmi, nvml or rapl; those summed, joined with +
	Watts     float64
	Mean      float64   // of the last 30 s, weighted with time
	At        time.Time // when it was taken; the oldest of those summed
}

// Age is how old the reading is, by the monotonic clock.
func (r Reading) Age() time.Duration { return time.Since(r.At) }

// state is what the meter knows; its owner guards it.
type state struct {
	start    time.Time
	hold     time.Duration // until a reading is stale
	series   [components]series
	watts    [components]float64
	at       [components]time.Duration
	known    [components]bool // there has been a reading
	expected [components]bool // the host has this part: without a reading of it, a sum is not the host's
}

func (s *state) now() time.Duration { return time.Since(s.start) }

func (s *state) add(c component, at time.Duration, watts float64) {
	if s.known[c] && at < s.at[c] {
		return
	}
	s.watts[c], s.at[c], s.known[c], s.expected[c] = watts, at, true, true
	s.series[c].add(at, watts)
}

// of returns c's reading, if there is a fresh one.
func (s *state) of(c component, now time.Duration) (r Reading, fresh bool) {
	if !s.known[c] || now-s.at[c] > s.hold {
		return r, false
	}
	mean, _ := s.series[c].mean(now, s.hold)
	return Reading{names[c], sourceOf[c], s.watts[c], mean, s.start.Add(s.at[c])}, true
}

// node combines: the chassis as the BMC measures it, else its power supplies,
// else DCMI, else the sum of the parts that the host is known to have. A part
// that is missing from the sum makes it unknown.
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
