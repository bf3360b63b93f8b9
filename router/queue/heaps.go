package queue

// tickets and groups implement heap.Interface. Their elements know their places.
type (
	tickets []*Ticket
	groups  []*group
)

func (h tickets) Len() int           { return len(h) }
func (h tickets) Less(i, j int) bool { return h[i].before(h[j]) }

func (h tickets) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *tickets) Push(x any) {
	t := x.(*Ticket)
	t.at = len(*h)
	*h = append(*h, t)
}

// Pop implements heap.Interface.
func (h *tickets) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return t
}

func (h groups) Len() int           { return len(h) }
func (h groups) Less(i, j int) bool { return h[i].tenant.before(h[j].tenant) }

func (h groups) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *groups) Push(x any) {
	g := x.(*group)
	g.at = len(*h)
	*h = append(*h, g)
}

// Pop implements heap.Interface.
func (h *groups) Pop() any {
	last := len(*h) - 1
	g := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return g
}
