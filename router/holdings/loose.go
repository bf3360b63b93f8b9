package holdings

import "sync/atomic"

// loose is a table of blocks without a place in their chain, and the tiers that they are in. One
// goroutine writes, any number read. A word is the upper 60 bits of a block's key and 4 bits of
// tiers; 0 is free, and one without tiers once stood for a block. A block that finds no room near
// its place is left out and counted.
type loose struct {
	words    atomic.Pointer[[looseSlots]atomic.Uint64] // made with the first block
	count    atomic.Int64
	overflow atomic.Uint64
}

const (
	looseSlots = 1 << 17 // 1 MiB
	looseProbe = 32
	tierMask   = 0xf
)

func slotOf(key uint64) uint64 { return key >> 20 }

// tiers are those that a block is in; 0 if it is not here.
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

// set says in which tiers a block is now, none to take it out.
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

// tombstone keeps the word of a block that is gone from being 0, which would end the search for
// others.
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
