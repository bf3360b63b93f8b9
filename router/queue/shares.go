package queue

// holder is a tenant with waiting requests, in any line.
type holder struct {
	place   // in Queue.shares
	name    string
	weight  float64
	waiting int
	bytes   int64
	share   float64   // see Queue.share
	in      []*tenant // those of its tenants that have waiting requests
}

// share returns the larger one of the shares that the holder has of the queue's requests and bytes,
// with n more requests and so many more bytes, divided by the weight.
func (q *Queue) share(h *holder, n int, bytes int64) float64 {
	return max(float64(h.waiting+n)/float64(q.o.MaxRequests), float64(h.bytes+bytes)/float64(q.o.MaxBytes)) / h.weight
}

// before says whether h has a larger share than x.
func (h *holder) before(x *holder) bool { return h.share > x.share }

// weight returns the weight of a tenant.
func (q *Queue) weight(name string) float64 {
	if w, given := q.o.Weights[name]; given {
		return w
	}
	return 1
}

// hold adds n, 1 or -1, requests and some bytes to a tenant's holder. The tenant's own number has
// been changed.
func (q *Queue) hold(of *tenant, n int, bytes int64) {
	h := q.holders[of.name]
	if h == nil {
		h = &holder{name: of.name, weight: of.weight}
		q.holders[of.name] = h
		q.shares.push(h)
	}
	h.waiting, h.bytes = h.waiting+n, h.bytes+bytes
	h.share = q.share(h, 0, 0)
	switch {
	case n > 0 && of.waiting == 1:
		h.in = append(h.in, of)
	case n < 0 && of.waiting == 0:
		h.in = without(h.in, of)
	}
	if q.shares.fix(h.at); h.waiting == 0 {
		q.shares.remove(h.at)
		delete(q.holders, h.name)
	}
}

// oustedMost bounds the requests that leave for one that joins.
const oustedMost = 16

// makeRoom makes room for a request in a full queue, at the cost of the tenant with the largest
// share of it, if that is larger than the share of the request's own tenant would be. Of its
// requests one of the lowest band leaves. If the two are the same tenant, one leaves for a request
// of a higher band. If all that may leave do not make enough room, none of them leaves.
func (q *Queue) makeRoom(c *Claim) error {
	if c.Bytes > q.o.MaxBytes {
		return ErrMemory
	}
	var taken [oustedMost]*Ticket
	var of [oustedMost]*tenant // those of taken
	n := 0
	for {
		full, large := q.waiting.Load() >= int64(q.o.MaxRequests), q.bytes+c.Bytes > q.o.MaxBytes
		if !full && !large {
			break
		}
		if n < oustedMost {
			if t := q.victim(c); t != nil {
				taken[n], of[n] = t, t.group.tenant
				t.line.remove(t)
				n++
				continue
			}
		}
		for i, t := range taken[:n] {
			t.line.add(t, of[i])
		}
		if n > 0 {
			q.wake()
		}
		if full {
			return ErrFull
		}
		return ErrMemory
	}
	for i, t := range taken[:n] {
		t.ousted = true
		t.line.closed(of[i])
		close(t.done)
	}
	return nil
}

// victim returns a request that may leave for a new one; nil: that would not be fair.
func (q *Queue) victim(c *Claim) *Ticket {
	if len(q.shares) == 0 {
		return nil
	}
	most, own := q.shares[0], &holder{weight: q.weight(c.Tenant)}
	if h := q.holders[c.Tenant]; h != nil {
		own = h
	}
	t := most.last()
	if t == nil || most == own && t.claim.Band >= c.Band || most != own && most.share <= q.share(own, 1, c.Bytes) {
		return nil
	}
	return t
}

// last returns a late ticket in the holder's lowest band, of the line where it has the most
// requests; nil: it is being tried.
func (h *holder) last() *Ticket {
	of := h.in[0]
	for _, x := range h.in {
		if x.waiting > of.waiting {
			of = x
		}
	}
	low := of.groups[0]
	for _, g := range of.groups {
		if g.band < low.band {
			low = g
		}
	}
	if t := low.tickets[len(low.tickets)-1]; t.state == waiting { // a leaf of the heap
		return t
	}
	return nil
}
