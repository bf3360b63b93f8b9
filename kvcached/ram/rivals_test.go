package ram

import (
	"container/list"
	"math/bits"
	"slices"
)

// aged is what the rivals have in common: the order of age.
type aged struct {
	order        list.List
	at           map[int]*list.Element
	gone, pieces int
	bytes        int
}

type resident struct {
	n, size, granules int
	place             uint32
}

func (a *aged) touch(n int) {
	if e := a.at[n]; e != nil {
		a.order.MoveToFront(e)
	}
}

func (a *aged) add(r resident) {
	a.at[r.n] = a.order.PushFront(r)
	a.bytes += r.size
}

func (a *aged) remove(e *list.Element) resident {
	r := a.order.Remove(e).(resident)
	delete(a.at, r.n)
	a.gone++
	a.pieces += r.granules
	a.bytes -= r.size
	return r
}

func (a *aged) evicted() (int, int) { return a.gone, a.pieces }

func (a *aged) payload() int { return a.bytes }

// buddy halves pieces down to the power of two that fits.
type buddy struct {
	aged
	free [32]map[uint32]bool
}

func newBuddy(granules int) *buddy {
	b := &buddy{aged: aged{at: map[int]*list.Element{}}}
	for i := range b.free {
		b.free[i] = map[uint32]bool{}
	}
	b.free[bits.Len(uint(granules))-1][0] = true
	return b
}

func order(size int) int { return bits.Len32(Granules(size) - 1) }

func (b *buddy) take(k int) (uint32, bool) {
	for j := k; j < len(b.free); j++ {
		for at := range b.free[j] {
			delete(b.free[j], at)
			for ; j > k; j-- {
				b.free[j-1][at+1<<(j-1)] = true
			}
			return at, true
		}
	}
	return 0, false
}

func (b *buddy) put(n, size int) bool {
	k := order(size)
	at, ok := b.take(k)
	for ; !ok; at, ok = b.take(k) {
		r := b.remove(b.order.Back())
		p, j := r.place, order(r.size)
		for b.free[j][p^1<<j] {
			delete(b.free[j], p^1<<j)
			p &^= 1 << j
			j++
		}
		b.free[j][p] = true
	}
	b.add(resident{n, size, 1 << k, at})
	return true
}

// slabs gives each class of sizes, four to a doubling, slabs of its own.
type slabs struct {
	aged
	free  map[int][]uint32 // places of a class
	class map[uint32]int   // of a slab
	used  map[uint32]map[int]bool
	spare []uint32
}

func newSlabs(granules int) *slabs {
	s := &slabs{aged: aged{at: map[int]*list.Element{}}, free: map[int][]uint32{}, class: map[uint32]int{}, used: map[uint32]map[int]bool{}}
	for i := range granules * Granule / slabBytes {
		s.spare = append(s.spare, uint32(i)<<16)
	}
	return s
}

func classOf(size int) int {
	n := int(Granules(size))
	if n < 8 {
		return n
	}
	top := bits.Len(uint(n)) - 1
	step := 1 << (top - 2)
	return (n + step - 1) / step * step
}

func (s *slabs) put(n, size int) bool {
	c := classOf(size)
	for len(s.free[c]) == 0 {
		if len(s.spare) == 0 {
			s.makeRoom(c)
			continue
		}
		slab := s.spare[0]
		s.spare = s.spare[1:]
		s.class[slab], s.used[slab] = c, map[int]bool{}
		for i := range slabBytes / Granule / c {
			s.free[c] = append(s.free[c], slab+uint32(i))
		}
	}
	last := len(s.free[c]) - 1
	place := s.free[c][last]
	s.free[c] = s.free[c][:last]
	s.used[place>>16<<16][n] = true
	s.add(resident{n, size, int(Granules(size)), place})
	return true
}

// makeRoom evicts the oldest block: if it is of another class, with the whole slab.
func (s *slabs) makeRoom(c int) {
	r := s.order.Back().Value.(resident)
	slab := r.place >> 16 << 16
	if s.class[slab] == c {
		s.remove(s.order.Back())
		delete(s.used[slab], r.n)
		s.free[c] = append(s.free[c], r.place)
		return
	}
	for n := range s.used[slab] {
		s.remove(s.at[n])
	}
	other := s.class[slab]
	s.free[other] = slices.DeleteFunc(s.free[other], func(p uint32) bool { return p>>16<<16 == slab })
	s.spare = append(s.spare, slab)
}
