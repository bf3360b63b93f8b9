package dispatch

// promote has the cache of the picked node's host bring into RAM, in the background, what it has of the prompt elsewhere, so that it is
// there when the engine asks for it.
func (d *Dispatcher) promote(j *Job, at int) {
	if d.holdings == nil || d.holdings.Empty() {
		return
	}
	from, to := d.holdings.Wanted(&j.query, at, j.reach[at])
	if from >= to {
		return
	}
	last, ok := j.chain.Digest(to - 1)
	if !ok {
		return // the Memo knows the keys of these blocks, not their digests
	}
	p := d.holdings.Promotion(&j.query, at, j.model.name)
	if p == nil {
		return
	}
	for to--; ok && to >= from; last, ok = j.chain.Digest(to) {
		p.Add(&last)
		to--
	}
	p.Before = to + 1 - from
	d.holdings.Ask(p)
}
