package queue

// heap is a binary heap. Its first element comes before all others. Elements know their places.
type heap[E element[E]] []E

type element[E any] interface {
	before(x E) bool
	put(at int)
}

// place is where an element is in its heap.
type place struct{ at int }

func (p *place) put(at int) { p.at = at }

func (h *heap[E]) push(e E) {
	*h = append(*h, e)
	h.fix(len(*h) - 1)
}

func (h *heap[E]) remove(at int) {
	all := *h
	last := len(all) - 1
	all[at] = all[last]
	clear(all[last:])
	if *h = all[:last]; at < last {
		h.fix(at)
	}
}

// fix restores the order after a change of the element at a place.
func (h heap[E]) fix(at int) {
	e := h[at]
	for up := (at - 1) / 2; at > 0 && e.before(h[up]); up = (at - 1) / 2 {
		h[at] = h[up]
		h[at].put(at)
		at = up
	}
	for down := 2*at + 1; down < len(h); down = 2*at + 1 {
		if down+1 < len(h) && h[down+1].before(h[down]) {
			down++
		}
		if !h[down].before(e) {
			break
		}
		h[at] = h[down]
		h[at].put(at)
		at = down
	}
	h[at] = e
	e.put(at)
}
