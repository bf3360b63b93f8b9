package prefix

import "time"

// stamp is a time in milliseconds since the index began, modulo 2^29 (6.2 days). Two stamps compare
// correctly while they lie within stampRange of each other. Sweeping guarantees that (see
// MaxLifetime).
type stamp = uint32

const (
	stampBits  = 29
	stampMask  = 1<<stampBits - 1
	stampRange = 1<<(stampBits-1) - 1 // ms, 3.1 days
)

// since returns a - b in milliseconds. since is negative if a is earlier.
func since(a, b stamp) int32 { return int32((a-b)<<(32-stampBits)) >> (32 - stampBits) }

func later(a, b stamp) stamp {
	if since(a, b) > 0 {
		return a
	}
	return b
}

// belief says that one node holds one group of blocks. belief is one word that readers load
// atomically. From the top:
//
//	born    29 bits  when the node (re)computed the group
//	touched 29 bits  when a request that uses the group was last known on the node
//	settled  1 bit   a request that used the group since born has completed
//	inUse    1 bit   touched is the dispatch of a request whose end is unknown
//	pending  1 bit   the node computes the group: no request that uses it has been answered
//
// The lowest three bits are 0. One of inUse and settled is always set, so no belief is 0.
type belief uint64

const (
	pending     = 1 << 3
	inUse       = 1 << 4
	settled     = 1 << 5
	touchedAt   = 6
	bornAt      = touchedAt + stampBits
	useFlags    = inUse | settled
	beliefFlags = useFlags | pending
)

func newBelief(born, touched stamp, flags uint64) belief {
	return belief(uint64(born)<<bornAt | uint64(touched)<<touchedAt | flags)
}

func (b belief) flags() uint64  { return uint64(b) & beliefFlags }
func (b belief) pending() bool  { return b&pending != 0 }
func (b belief) born() stamp    { return stamp(b>>bornAt) & stampMask }
func (b belief) touched() stamp { return stamp(b>>touchedAt) & stampMask }

// touch returns the belief, used by a request at now. touch moves a birth that is too old to
// compare.
func (b belief) touch(now stamp, flags uint64) belief {
	touched := later(b.touched(), now)
	born := b.born()
	if since(touched, born) > maxAge {
		born = (touched - stamp(maxAge)) & stampMask
	}
	return newBelief(born, touched, flags)
}

// maxAge bounds the age of beliefs, in milliseconds.
const maxAge = int32(48 * time.Hour / time.Millisecond)

// clock turns times into stamps.
type clock struct {
	epoch time.Time
	now   func() time.Time
}

func (c *clock) millis(t time.Time) int64 { return int64(t.Sub(c.epoch) / time.Millisecond) }
func (c *clock) stamp(t time.Time) stamp  { return stamp(c.millis(t)) & stampMask }
func (c *clock) nowStamp() (stamp, int64) { m := c.millis(c.now()); return stamp(m) & stampMask, m }
