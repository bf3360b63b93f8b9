package relay

import "math/bits"

// A wheel counts time in ticks.
const (
	wheelSlots = 1024
	wheelWords = wheelSlots / 64
)

// wheel holds timers by the tick at which they are due. Setting, dropping and firing cost the same
// for any number of timers. A timer beyond the wheel's length fires early, and its owner must set
// it again. Since the owner must check the clock anyway, it need not set the timer again when a
// deadline moves later. The zero value is at tick 0.
type wheel struct {
	slots [wheelSlots]timer // heads of circular lists; next is nil in an unused slot
	used  [wheelWords]uint64
	at    int64 // all ticks up to this one have fired
}

// timer is one entry of a wheel. A timer is embedded in its owner.
type timer struct {
	prev, next *timer
	tick       int64
	flow       *flow
}

func (t *timer) set() bool { return t.next != nil }

// set makes t fire at tick, or at the next tick if that is later. t may be set already.
func (w *wheel) set(t *timer, tick int64) {
	w.drop(t)
	t.tick = min(max(tick, w.at+1), w.at+wheelSlots-1)
	i := t.tick % wheelSlots
	head := &w.slots[i]
	if head.next == nil {
		head.prev, head.next = head, head
	}
	t.prev, t.next = head.prev, head
	head.prev.next, head.prev = t, t
	w.used[i/64] |= 1 << (i % 64)
}

// drop prevents t from firing.
func (w *wheel) drop(t *timer) {
	if !t.set() {
		return
	}
	t.prev.next, t.next.prev = t.next, t.prev
	t.prev, t.next = nil, nil
	i := t.tick % wheelSlots
	if head := &w.slots[i]; head.next == head {
		w.used[i/64] &^= 1 << (i % 64)
	}
}

// next returns the tick at which the next timer is due; ok is false if none is set.
func (w *wheel) next() (tick int64, ok bool) {
	first := w.at + 1
	for n := int64(0); n < wheelSlots; {
		i := (first + n) % wheelSlots
		if word := w.used[i/64] >> (i % 64); word != 0 {
			return first + n + int64(bits.TrailingZeros64(word)), true
		}
		n += 64 - i%64
	}
	return 0, false
}

// advance fires the timers that are due up to tick. A timer is dropped before it fires, and fire
// may set it again.
func (w *wheel) advance(tick int64, fire func(*timer)) {
	for w.at < tick {
		next, ok := w.next()
		if !ok || next > tick {
			w.at = tick
			return
		}
		w.at = next
		for head := &w.slots[next%wheelSlots]; head.next != head; {
			t := head.next
			w.drop(t)
			fire(t)
		}
	}
}
