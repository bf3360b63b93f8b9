package load

import (
	"time"

	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// longest is the largest age that a message is taken to say; a larger one counts as it.
const longest = 24 * time.Hour

// Message is the load of the node as an agent tells it at now.
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
	return m
}

// FromMessage is the load that m tells, with ages that were true at sent. Figures out of their
// bounds are unknown.
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
	return r
}

// Micros is the age at now of something that was at the given time, in microseconds and never less
// than 0; nil: it never was.
func Micros(at, now time.Time) *uint64 {
	if at.IsZero() {
		return nil
	}
	us := uint64(max(now.Sub(at), 0) / time.Microsecond)
	return &us
}

// Duration is a time that a message says, a day at most.
func Duration(us uint64) time.Duration {
	return time.Duration(min(us, uint64(longest/time.Microsecond))) * time.Microsecond
}
