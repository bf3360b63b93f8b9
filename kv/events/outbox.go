package events

import (
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
)

// Bounds on a report, which are the limits of Kv.Report.
const (
	reportDigests = 32768
	reportEvents  = 4096
)

// maxPending bounds the digests of unreported changes, 36 bytes each.
const maxPending = 4 * reportDigests

// outbox holds the unreported changes, oldest first.
type outbox struct {
	changes []change
	digests []block.Digest
	from    int // index of the first change that was not taken
	at      int // index of its first digest
}

// change is an event of a report with its number of digests.
type change struct {
	kind   residency.Kind
	tier   residency.Tiers
	label  string
	parent block.Digest // zero: none
	n      int
}

// size returns the number of digests in the outbox, or of changes if that is more.
func (o *outbox) size() int { return max(len(o.digests)-o.at, len(o.changes)-o.from) }

func (o *outbox) reset() {
	if cap(o.digests) > 2*maxPending {
		*o = outbox{}
	}
	o.changes, o.digests, o.from, o.at = o.changes[:0], o.digests[:0], 0, 0
}

// stored notes that a tier now has a run of digests that continues parent. root says that parent is
// a seed, not a block.
func (o *outbox) stored(tier residency.Tiers, label string, parent block.Digest, root bool, digests []block.Digest) {
	if root {
		parent = block.Digest{}
	}
	o.digests = append(o.digests, digests...)
	if n := len(o.changes); n > o.from && !root {
		if c := &o.changes[n-1]; c.kind == residency.Stored && c.tier == tier && c.label == label &&
			o.digests[len(o.digests)-len(digests)-1] == parent {
			c.n += len(digests)
			return
		}
	}
	o.changes = append(o.changes, change{kind: residency.Stored, tier: tier, label: label, parent: parent,
		n: len(digests)})
}

// removed notes that a tier no longer has digests.
func (o *outbox) removed(tier residency.Tiers, digests []block.Digest) {
	if len(digests) == 0 {
		return
	}
	o.digests = append(o.digests, digests...)
	if n := len(o.changes); n > o.from {
		if c := &o.changes[n-1]; c.kind == residency.Removed && c.tier == tier {
			c.n += len(digests)
			return
		}
	}
	o.changes = append(o.changes, change{kind: residency.Removed, tier: tier, n: len(digests)})
}

// cleared notes that the engine has no blocks. Earlier changes then need no report.
func (o *outbox) cleared() {
	o.reset()
	o.changes = append(o.changes, change{kind: residency.Cleared})
}

// take moves changes into a report's events, as many as fit, and copies their digests to room.
func (o *outbox) take(events []residency.Event, room []block.Digest,
	namespace string) ([]residency.Event, []block.Digest) {
	for o.from < len(o.changes) && len(events) < reportEvents && len(room) < reportDigests {
		c := &o.changes[o.from]
		n := min(c.n, reportDigests-len(room))
		start := len(room)
		room = append(room, o.digests[o.at:o.at+n]...)
		events = append(events, residency.Event{
			Kind: c.kind, Namespace: namespace, Tier: c.tier, Adapter: c.label, Parent: c.parent,
			Digests: room[start:len(room):len(room)],
		})
		o.at += n
		if c.n -= n; c.n > 0 {
			c.parent = room[len(room)-1]
			break
		}
		o.from++
	}
	if o.from == len(o.changes) {
		o.reset()
	}
	return events, room
}
