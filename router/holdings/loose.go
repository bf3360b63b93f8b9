package holdings

import "sync/atomic"

// loose is a table of the blocks without a place in their chain, with their tiers. One goroutine
// writes; any number read. A word holds the upper 60 bits of a block's key and 4 bits of tiers. The
// word 0 is free. A word without tiers is a tombstone. A block that finds no room near its slot is
// left out and counted.
type loose struct {
	words    atomic.Pointer[[looseSlots]atomic.Uint64] // made for the first block
	count    atomic.Int64
	overflow atomic.Uint64
}

const (
	looseSlots = 1 << 17 // 1 MiB
	looseProbe = 32
	tierMask   = 0xf
)

func slotOf(key uint64) uint64 { return key >> 20 }

// tiers returns the tiers of a block, or 0 if the table does not hold it.
func (l *loose) tiers(key uint64) uint8 {
	words := l.words.Load()
	if words == nil {
		return 0
	}
	for i := range uint64(looseProbe) {
		w := words[(slotOf(key)+i)%looseSlots].Load()
		if w == 0 {
			return 0
		}
		if (w^key)&^tierMask == 0 {
			return uint8(w & tierMask)
		}
	}
	return 0
}

// set stores the tiers of a block. Zero tiers remove the block.
func (l *loose) set(key uint64, tiers uint8) {
	words := l.words.Load()
	if words == nil {
		if tiers == 0 {
			return
		}
		words = new([looseSlots]atomic.Uint64)
		l.words.Store(words)
	}
	var room *atomic.Uint64
	for i := range uint64(looseProbe) {
		at := &words[(slotOf(key)+i)%looseSlots]
		w := at.Load()
		if w != 0 && (w^key)&^tierMask == 0 {
			l.replace(at, key, tiers)
			return
		}
		if w&tierMask == 0 && room == nil {
			room = at
		}
		if w == 0 {
			break
		}
	}
	switch {
	case tiers == 0:
	case room == nil:
		l.overflow.Add(1)
	default:
		l.replace(room, key, tiers)
	}
}

func (l *loose) replace(at *atomic.Uint64, key uint64, tiers uint8) {
	was := at.Load() & tierMask
	at.Store(key&^tierMask | uint64(tiers&tierMask) | tombstone(key))
	if was == 0 && tiers != 0 {
		l.count.Add(1)
	} else if was != 0 && tiers == 0 {
		l.count.Add(-1)
	}
}

// tombstone makes the word of a removed block, which must not be 0. A zero word would end the
// search for other blocks.
func tombstone(key uint64) uint64 {
	if key&^tierMask == 0 {
		return 1 << 63
	}
	return 0
}

func (l *loose) clear() {
	l.words.Store(nil)
	l.count.Store(0)
}
