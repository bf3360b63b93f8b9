package load

import (
	"time"

	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// longest bounds the ages in a message. A larger age is reduced to longest.
const longest = 24 * time.Hour

// Message returns the node's load at now as an agent sends it.
func (l *Load) Message(node string, now time.Time) *pb.NodeLoad {
	m := &pb.NodeLoad{NodeId: node}
	for i := range samples {
		s := &samples[i]
		*s.age(m) = Micros(s.at(l).Time, now)
		for k := range s.Signals {
			signal := &s.Signals[k]
			if g := *signal.gauge(l); g.known && signal.field != nil {
				*signal.field(m) = &g.value
			}
		}
	}
	for i := range l.Ranks {
		m.Ranks = append(m.Ranks, l.Ranks[i].message())
	}
	return m
}

// message returns the rank's part as an agent sends it.
func (r *Rank) message() *pb.RankLoad {
	m := &pb.RankLoad{}
	fields := fieldsOf(m)
	for k, g := range r.figures() {
		if g.known {
			v := g.value
			*fields[k] = &v
		}
	}
	return m
}

// fieldsOf returns the fields of m, in the order of Rank.figures.
func fieldsOf(m *pb.RankLoad) [5]**float64 {
	return [...]**float64{&m.InFlight, &m.QueueDepth, &m.FreeBlocks, &m.TotalBlocks, &m.KvUsage}
}

// FromMessage returns the load in m, whose ages were valid at sent. Figures out of their bounds are
// unknown.
func FromMessage(m *pb.NodeLoad, sent time.Time) Reading {
	r := Reading{Node: m.NodeId}
	for i := range samples {
		s := &samples[i]
		if us := *s.age(m); us != nil {
			*s.at(&r.Load) = Taken{sent.Add(-Duration(*us))}
		}
		for k := range s.Signals {
			signal := &s.Signals[k]
			if signal.field == nil {
				continue
			}
			if v := *signal.field(m); v != nil && *v >= 0 && *v <= signal.Most {
				*signal.gauge(&r.Load) = Known(*v)
			}
		}
	}
	if n := len(m.Ranks); n > 0 && n <= MaxRanks {
		r.Load.Ranks = make([]Rank, n)
		for i, rank := range m.Ranks {
			r.Load.Ranks[i].read(rank)
		}
	}
	return r
}

// read takes the figures in m that are within their bounds.
func (r *Rank) read(m *pb.RankLoad) {
	fields, signals := fieldsOf(m), samples[engineSample].Signals
	for k, g := range r.figures() {
		if v := *fields[k]; v != nil && *v >= 0 && *v <= signals[k].Most {
			*g = Known(*v)
		}
	}
}

// Micros returns the age at now of a time, in microseconds and never less than 0; nil for a zero
// time.
func Micros(at, now time.Time) *uint64 {
	if at.IsZero() {
		return nil
	}
	us := uint64(max(now.Sub(at), 0) / time.Microsecond)
	return &us
}

// Duration returns the time in a message field, at most a day.
func Duration(us uint64) time.Duration {
	return time.Duration(min(us, uint64(longest/time.Microsecond))) * time.Microsecond
}
