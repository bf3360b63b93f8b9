package chunks

import "unsafe"

// arena keeps records of a number of values each, by the records' numbers from 1. A record stays
// where it is. An arena never shrinks.
type arena[T any] struct {
	size  int    // values of a record
	each  uint32 // records of a slab
	slabs [][]T
	used  uint32
	free  []uint32
}

const slabBytes = 8 << 10

func newArena[T any](size int) arena[T] {
	var value T
	return arena[T]{size: size, each: slabBytes / uint32(size*int(unsafe.Sizeof(value)))}
}

// add returns the number of a new record of zeros.
func (a *arena[T]) add() uint32 {
	if n := len(a.free); n > 0 {
		i := a.free[n-1]
		a.free = a.free[:n-1]
		return i
	}
	if a.used++; a.used > uint32(len(a.slabs))*a.each {
		a.slabs = append(a.slabs, make([]T, int(a.each)*a.size))
	}
	return a.used
}

// at returns a record.
func (a *arena[T]) at(i uint32) []T {
	slab, from := (i-1)/a.each, int((i-1)%a.each)*a.size
	return a.slabs[slab][from : from+a.size : from+a.size]
}

// drop frees a record.
func (a *arena[T]) drop(i uint32) {
	clear(a.at(i))
	a.free = append(a.free, i)
}
