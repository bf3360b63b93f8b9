package events

import (
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
)

// Bounds of a report, which are those of Kv.Report.
const (
	reportDigests = 32768
	reportEvents  = 4096
)

// maxPending bounds the digests of changes on their way to the sink, 36 bytes each.
const maxPending = 4 * reportDigests

// outbox is the changes that have not been reported yet, oldest first.
type outbox struct {
	changes []change
	digests []block.Digest
	from    int // the first change that is not taken
	at      int // its first digest
}

// change is an event of a report, with the number of its digests.
type change struct {
	kind   residency.Kind
	tier   residency.Tiers
	label  string
	parent block.Digest // zero: none
	n      int
}

// size is how many digests, or changes if those are more, are in the outbox.
func (o *outbox) size() int { return max(len(o.digests)-o.at, len(o.changes)-o.from) }

func (o *outbox) reset() {
	if cap(o.digests) > 2*maxPending {
		*o = outbox{}
	}
	o.changes, o.digests, o.from, o.at = o.changes[:0], o.digests[:0], 0, 0
}

// stored notes that digests, which follow each other and parent, are in a tier. Root: parent is a
// seed, which names no block.
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

// removed notes that digests are in a tier no more.
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

// cleared notes that nothing is anywhere any more: what has been noted before need not be told.
func (o *outbox) cleared() {
	o.reset()
	o.changes = append(o.changes, change{kind: residency.Cleared})
}

// take moves what fits into a report's events, whose digests are copied to room.
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
