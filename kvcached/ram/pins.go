package ram

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// ErrPins says that there are too many pins, or too many pinned bytes.
var ErrPins = errors.New("ram: too many pins")

// MaxPin is how far ahead a client's pin may end. The servers refuse later ends.
const MaxPin = 24 * time.Hour

// The shares of the arena that may be pinned: by all owners, and by one owner.
const (
	pinnedShare = 2
	ownerShare  = 4
)

// MaxOwner is how long the name of a pin's owner may be, in bytes.
const MaxOwner = 256

const defaultPins = 16_384

// pin keeps a block from being evicted, for one owner.
type pin struct {
	id    ID
	owner string
}

type pins struct {
	ends   map[pin]int64     // Unix ms
	owners map[string]uint32 // granules of their blocks
	max    int
}

func newPins(limit int) pins {
	if limit <= 0 {
		limit = defaultPins
	}
	return pins{ends: map[pin]int64{}, owners: map[string]uint32{}, max: limit}
}

// forget ends all pins of a block of size granules.
func (p *pins) forget(id ID, size uint32) {
	for k := range p.ends {
		if k.id == id {
			p.drop(k, size)
		}
	}
}

// drop ends one pin of a block of size granules.
func (p *pins) drop(k pin, size uint32) {
	delete(p.ends, k)
	if p.owners[k.owner] -= size; p.owners[k.owner] == 0 {
		delete(p.owners, k.owner)
	}
}

// fit tells whether all owners together may pin that many granules. fitOwner tells whether one
// owner may.
func (t *Tier) fit(total uint32) bool {
	return int64(total)*Granule <= t.arena.Size()/pinnedShare
}

func (t *Tier) fitOwner(total uint32) bool {
	return int64(total)*Granule <= t.arena.Size()/ownerShare
}

// repin moves the pins of a block to a body of another size. It ends them if they would exceed the
// bounds.
func (t *Tier) repin(id ID, was, is uint32) {
	fits := t.fit(t.pinned + is)
	for k := range t.pins.ends {
		if k.id == id && was != is {
			t.pins.owners[k.owner] += is - was
			fits = fits && t.fitOwner(t.pins.owners[k.owner])
		}
	}
	if fits {
		t.pinned += is
		return
	}
	t.pins.forget(id, is)
	t.At(id).pins = 0
}

// Pin keeps a block from being evicted until the given time, in Unix ms. A later call of the same
// owner changes the time. ErrPins: there are too many pins, or more pinned bytes than half of the
// arena, or a quarter for one owner.
func (t *Tier) Pin(id ID, owner string, until int64) error {
	k := pin{id, owner}
	if _, known := t.pins.ends[k]; !known {
		e := t.At(id)
		if len(owner) > MaxOwner || len(t.pins.ends) >= t.pins.max || e.pins == math.MaxUint16 {
			return fmt.Errorf("%w: there may be %d, with owners of at most %d bytes", ErrPins, t.pins.max, MaxOwner)
		}
		size := t.extents.pieces.at(uint32(e.body)).size
		if e.pins == 0 && !t.fit(t.pinned+size) || !t.fitOwner(t.pins.owners[owner]+size) {
			return fmt.Errorf("%w: half of the arena may be pinned, and a quarter by one owner", ErrPins)
		}
		if e.pins++; e.pins == 1 {
			t.pinned += size
		}
		t.pins.owners[owner] += size
	}
	t.pins.ends[k] = until
	return nil
}

// Unpin ends a pin, if there is one.
func (t *Tier) Unpin(id ID, owner string) {
	if _, known := t.pins.ends[pin{id, owner}]; known {
		t.unpin(pin{id, owner})
	}
}

func (t *Tier) unpin(k pin) {
	e := t.At(k.id)
	size := t.extents.pieces.at(uint32(e.body)).size
	t.pins.drop(k, size)
	if e.pins--; e.pins == 0 {
		t.pinned -= size
		t.settle(k.id)
	}
}

// EndPins ends the pins that are over at now, in Unix ms, and returns how many it ended.
func (t *Tier) EndPins(now int64) (ended int) {
	for k, until := range t.pins.ends {
		if until <= now {
			t.unpin(k)
			ended++
		}
	}
	return ended
}
