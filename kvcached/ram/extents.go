package ram

import (
	"math/bits"
	"unsafe"
)

// Extents hand out pieces of [0, granules) and take them back.
//
// All pieces, free or not, form one list by address, so that a returned piece merges with its
// neighbours at once. Free pieces are also in bins by size, sixteen bins to each doubling, found by
// a bitmap. A request takes one of the first few fitting pieces of its own bin, or else of the next
// bin that is not empty. A small request takes the lowest address and a large one the highest,
// which keeps small blocks out of the room for large ones.
type extents struct {
	pieces chunked[extent]
	spare  uint32 // list of unused pieces, by next
	head   [binRows][binColumns]uint32
	row    uint64
	column [binRows]uint32
	free   uint32 // granules
	first  uint32
}

// extent is one piece. While it is free, link and mark are its neighbours in the bin. Otherwise
// they are references and owner.
type extent struct {
	at, size   uint32 // granules; at with inUse, if it is
	prev, next uint32 // by address
	link, mark uint32
}

// inUse marks a used piece in at. No place has this bit, as an arena has at most 2^31 granules.
const inUse = 1 << 31

func (e *extent) used() bool { return e.at&inUse != 0 }

// place is where the piece begins, in granules.
func (e *extent) place() uint32 { return e.at &^ inUse }

const (
	binColumns  = 16
	binRows     = 29
	binPatience = 16                // pieces of one bin that a request looks at
	large       = 1 << 20 / Granule // larger pieces lie at the arena's end, smaller ones at its beginning
)

func newExtents(granules uint32) *extents {
	x := &extents{}
	x.pieces.grow() // 0 is none
	x.first = x.piece(0, granules)
	x.insert(x.first)
	x.free = granules
	return x
}

func (x *extents) piece(at, size uint32) uint32 {
	id := x.spare
	if id != 0 {
		x.spare = x.pieces.at(id).next
	} else {
		id = x.pieces.grow()
	}
	*x.pieces.at(id) = extent{at: at, size: size}
	return id
}

// bin is where a free piece of size belongs.
func bin(size uint32) (row, column int) {
	if size < binColumns {
		return 0, int(size)
	}
	top := bits.Len32(size) - 1
	return top - 3, int(size>>(top-4)) - binColumns
}

func (x *extents) insert(id uint32) {
	e := x.pieces.at(id)
	r, c := bin(e.size)
	e.at, e.link, e.mark = e.place(), 0, x.head[r][c]
	if e.mark != 0 {
		x.pieces.at(e.mark).link = id
	}
	x.head[r][c] = id
	x.row |= 1 << r
	x.column[r] |= 1 << c
}

func (x *extents) remove(id uint32) {
	e := x.pieces.at(id)
	r, c := bin(e.size)
	if e.mark != 0 {
		x.pieces.at(e.mark).link = e.link
	}
	if e.link != 0 {
		x.pieces.at(e.link).mark = e.mark
		return
	}
	if x.head[r][c] = e.mark; e.mark == 0 {
		if x.column[r] &^= 1 << c; x.column[r] == 0 {
			x.row &^= 1 << r
		}
	}
}

// fit returns, among the first pieces of a bin, the fitting piece nearest to the end of the arena
// for this size: the beginning for small pieces, the end for large ones.
func (x *extents) fit(r, c int, size uint32) (best uint32) {
	id := x.head[r][c]
	for n := 0; id != 0 && n < binPatience; n++ {
		e := x.pieces.at(id)
		if e.size >= size && (best == 0 || (e.at > x.pieces.at(best).at) == (size >= large)) {
			best = id
		}
		id = e.mark
	}
	return best
}

// find is a free piece of at least size, or 0.
func (x *extents) find(size uint32) uint32 {
	r, c := bin(size)
	if id := x.fit(r, c, size); id != 0 {
		return id
	}
	if m := x.column[r] &^ (1<<(c+1) - 1); m != 0 {
		return x.fit(r, bits.TrailingZeros32(m), size)
	}
	if m := x.row &^ (1<<(r+1) - 1); m != 0 {
		r = bits.TrailingZeros64(m)
		return x.fit(r, bits.TrailingZeros32(x.column[r]), size)
	}
	return 0
}

// alloc returns a piece of exactly size granules, which is then in use; 0: there is none.
func (x *extents) alloc(size uint32) uint32 {
	id := x.find(size)
	if id == 0 {
		return 0
	}
	return x.take(id, size)
}

// take turns size granules of the free piece id into a used piece and returns it. The rest stays
// free.
func (x *extents) take(id, size uint32) uint32 {
	x.remove(id)
	e := x.pieces.at(id)
	if rest := e.size - size; rest > 0 {
		tail := x.piece(e.at+size, rest)
		e = x.pieces.at(id)
		t := x.pieces.at(tail)
		t.prev, t.next = id, e.next
		if e.next != 0 {
			x.pieces.at(e.next).prev = tail
		}
		e.next, e.size = tail, size
		if size >= large {
			e.size, t.at, t.size = rest, e.at+rest, size
			id, tail = tail, id
		}
		x.insert(tail)
	}
	e = x.pieces.at(id)
	e.at, e.link, e.mark = e.at|inUse, 0, 0
	x.free -= size
	return id
}

// trim makes the used piece id one of size granules.
func (x *extents) trim(id, size uint32) {
	e := x.pieces.at(id)
	tail := x.piece(e.at+size, e.size-size) // in use, as e is
	e = x.pieces.at(id)
	t := x.pieces.at(tail)
	t.prev, t.next = id, e.next
	if e.next != 0 {
		x.pieces.at(e.next).prev = tail
	}
	e.next, e.size = tail, size
	x.give(tail)
}

// give takes a piece back. Its id may be reused.
func (x *extents) give(id uint32) {
	e := x.pieces.at(id)
	x.free += e.size
	if n := e.next; n != 0 && !x.pieces.at(n).used() {
		x.remove(n)
		x.swallow(id, n)
	}
	if p := e.prev; p != 0 && !x.pieces.at(p).used() {
		x.remove(p)
		x.swallow(p, id)
		id = p
	}
	x.insert(id)
}

// swallow joins the piece right to left, the piece before it.
func (x *extents) swallow(left, right uint32) {
	l, r := x.pieces.at(left), x.pieces.at(right)
	l.size += r.size
	if l.next = r.next; r.next != 0 {
		x.pieces.at(r.next).prev = left
	}
	*r = extent{next: x.spare}
	x.spare = right
}

// largest is the size of the largest free piece, to within a sixteenth.
func (x *extents) largest() uint32 {
	if x.row == 0 {
		return 0
	}
	r := bits.Len64(x.row) - 1
	return x.pieces.at(x.head[r][bits.Len32(x.column[r])-1]).size
}

// chunkBits is the logarithm of the elements in a chunk, which fill whole pages of the Go heap.
const chunkBits = 10

// chunked is an array that grows without copying: elements stay in their place.
type chunked[T any] struct {
	chunks []*[1 << chunkBits]T
	n      uint32
}

func (c *chunked[T]) at(i uint32) *T { return &c.chunks[i>>chunkBits][i&(1<<chunkBits-1)] }

// grow adds an element and returns its index.
func (c *chunked[T]) grow() uint32 {
	if int(c.n>>chunkBits) == len(c.chunks) {
		c.chunks = append(c.chunks, new([1 << chunkBits]T))
	}
	c.n++
	return c.n - 1
}

// bytesOf is the memory of an array.
func bytesOf[T any](c *chunked[T]) int64 {
	return int64(len(c.chunks)) << chunkBits * int64(unsafe.Sizeof(*new(T)))
}
