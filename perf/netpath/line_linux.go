package netpath

import (
	"bytes"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"
)

// line is one direction of a path.
type line struct {
	from, to   *os.File
	conditions *atomic.Pointer[Conditions]
	chance     *rand.Rand
	onTheWay   chan packet // bounded; further packets are dropped
	last       time.Time   // when the previous packet is completely sent, at the path's rate
	due        time.Time   // when the previous packet arrives

	forwarded, lost, dropped atomic.Uint64
}

type packet struct {
	bytes []byte
	due   time.Time
}

func newLine(from, to *os.File, c *atomic.Pointer[Conditions], queue int, seed uint64) *line {
	return &line{
		from: from, to: to, conditions: c, chance: rand.New(rand.NewPCG(seed, 0)),
		onTheWay: make(chan packet, queue),
	}
}

// read reads packets until the device is closed.
func (l *line) read() {
	defer close(l.onTheWay)
	buf := make([]byte, mtu)
	for {
		n, err := l.from.Read(buf)
		if err != nil {
			return
		}
		if n == 0 || buf[0]>>4 != 4 { // the path has only IPv4; the kernel sends own packets over IPv6 at any time
			continue
		}
		c := l.conditions.Load()
		if c.Loss > 0 && l.chance.Float64() < c.Loss {
			l.lost.Add(1)
			continue
		}
		select {
		case l.onTheWay <- packet{bytes.Clone(buf[:n]), l.arrival(c, n)}:
		default:
			l.dropped.Add(1)
		}
	}
}

// arrival returns when a packet of n bytes that is sent now will arrive. Packets keep their order.
func (l *line) arrival(c *Conditions, n int) time.Time {
	sent := time.Now()
	if c.Rate > 0 {
		if l.last.After(sent) {
			sent = l.last
		}
		sent = sent.Add(time.Duration(int64(n) * int64(time.Second) / c.Rate))
		l.last = sent
	}
	if due := sent.Add(c.Delay); due.After(l.due) {
		l.due = due
	}
	return l.due
}

// write delivers packets when they are due.
func (l *line) write() {
	for p := range l.onTheWay {
		time.Sleep(time.Until(p.due))
		if _, err := l.to.Write(p.bytes); err == nil {
			l.forwarded.Add(1)
		}
	}
}

func (l *line) counts() Counts {
	return Counts{Forwarded: l.forwarded.Load(), Lost: l.lost.Load(), Dropped: l.dropped.Load()}
}
