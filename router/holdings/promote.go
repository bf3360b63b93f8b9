package holdings

import (
	"context"
	"sync/atomic"
	"time"

	cognitorav1 "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// Promote says what a daemon is asked to bring into RAM ahead of a request that goes to its host.
type Promote uint8

// What is brought.
const (
	PromoteOff   Promote = iota
	PromoteDisk          // what the host has on SSD only
	PromoteFleet         // that, and what only other hosts have
)

// Bounds of promotions. One that finds the queue full is dropped, and counted.
const (
	promotions     = 64   // waiting and under way
	promoteWorkers = 2    // under way
	promoteBlocks  = 1024 // of one prompt; the first ones
	promoteWithin  = 10 * time.Second
	promoteSpaces  = 8 // namespaces that a prompt's blocks are looked for in
)

// Promotion is what a daemon is asked to bring into RAM. Promotion makes one, Ask sends it.
type Promotion struct {
	// Digests of consecutive blocks, 32 bytes each, the last one first.
	Digests []byte
	// Before is how many blocks before those are wanted too, whose digests are not known: their
	// successors' parents.
	Before int

	cache *cache
	model string
}

// Add adds the block before those that are there.
func (p *Promotion) Add(digest *[32]byte) { p.Digests = append(p.Digests, digest[:]...) }

// promoter is the promotions of a Map.
type promoter struct {
	mode  Promote
	free  chan *Promotion
	queue chan *Promotion

	asked, dropped, failed, blocks atomic.Uint64
}

func newPromoter(mode Promote) *promoter {
	p := &promoter{mode: mode, free: make(chan *Promotion, promotions), queue: make(chan *Promotion, promotions)}
	for range promotions {
		p.free <- &Promotion{}
	}
	return p
}

// Wanted is which blocks of a prompt, from up to to, a request that goes to node i of the question
// wants to be brought into RAM of that node's host.
func (m *Map) Wanted(q *Query, i int, r Reach) (from, to int) {
	if m.promoter.mode == PromoteOff || i >= len(q.caches) || q.caches[i] == nil {
		return 0, 0
	}
	reach := r.Disk
	if m.promoter.mode == PromoteFleet {
		for k := range q.asked {
			reach = max(reach, q.matched[2*k+1])
		}
	}
	from = int(max(r.Device, r.Host, 0))
	return from, min(int(reach), from+promoteBlocks)
}

// Promotion is one for node i of a question; nil if too many wait. It does not wait, and allocates
// only while Promotions are new. Whoever has one calls Ask.
func (m *Map) Promotion(q *Query, i int, model string) *Promotion {
	select {
	case p := <-m.promoter.free:
		p.cache, p.model, p.Digests, p.Before = q.caches[i], model, p.Digests[:0], 0
		return p
	default:
		m.promoter.dropped.Add(1)
		return nil
	}
}

// Ask has a promotion done in the background.
func (m *Map) Ask(p *Promotion) { m.promoter.queue <- p } // there is room for all that there are

// promote does promotions until ctx ends.
func (m *Map) promote(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-m.promoter.queue:
			m.promoter.asked.Add(1)
			n, err := m.bring(ctx, p)
			m.promoter.blocks.Add(uint64(n))
			if err != nil && ctx.Err() == nil {
				m.promoter.failed.Add(1)
				m.options.Logger.Debug("blocks are not promoted", "cache", p.cache.id, "error", err)
			}
			m.promoter.free <- p
		}
	}
}

// bring asks the daemon for the blocks in each namespace that may have them, and returns how many
// are in RAM for that.
func (m *Map) bring(ctx context.Context, p *Promotion) (n int, err error) {
	client := p.cache.client.Load()
	if client == nil || len(p.Digests) == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, promoteWithin)
	defer cancel()
	w := wish{client: *client, fleet: m.promoter.mode == PromoteFleet}
	for _, s := range m.spaces.of(p.model) {
		here, err := w.bring(ctx, s, p)
		if n += here; err != nil {
			return n, err
		}
	}
	return n, nil
}

// wish is a promotion at work.
type wish struct {
	client cognitorav1.KvClient
	fleet  bool
}

// wants tells whether a block in some tiers is to be promoted.
func (w *wish) wants(tiers uint32) bool {
	const ram = uint32(cognitorav1.Tier_TIER_HOST)
	return tiers&ram == 0 && (w.fleet || tiers&uint32(cognitorav1.Tier_TIER_DISK) != 0)
}

// bring promotes the blocks of a namespace, of all of its ranks and layers.
func (w *wish) bring(ctx context.Context, s space, p *Promotion) (n int, err error) {
	digests := p.Digests
	if p.Before > 0 {
		if digests, err = w.ancestors(ctx, s, p); err != nil {
			return 0, err
		}
	}
	for _, text := range s.ranks() {
		for layer := s.layer; ; layer++ {
			there, here, err := w.some(ctx, text, layer, digests)
			if n += here; err != nil {
				return n, err
			}
			if !there || s.layer != 0 || layer == maxLayers {
				break
			}
		}
	}
	return n, nil
}

// maxLayers is how many layers of blocks that have one each are looked for.
const maxLayers = 512

// ancestors adds to the digests of a promotion those of the blocks before, as far as the daemon
// knows them.
func (w *wish) ancestors(ctx context.Context, s space, p *Promotion) ([]byte, error) {
	digests, last := p.Digests, p.Digests[len(p.Digests)-32:]
	for range p.Before {
		r, err := w.client.Lookup(ctx, &cognitorav1.LookupRequest{Namespace: s.text, Layer: s.layer, Digest: last})
		if err != nil {
			return nil, err
		}
		if last = r.Parent; len(last) != 32 {
			break
		}
		digests = append(digests[:len(digests):len(digests)], last...)
	}
	return digests, nil
}

// some promotes what is to be of a layer of a rank, and tells whether there was anything.
func (w *wish) some(ctx context.Context, namespace string, layer uint32,
	digests []byte) (there bool, n int, err error) {
	r, err := w.client.BatchLookup(ctx, &cognitorav1.BatchLookupRequest{Namespace: namespace, Layer: layer,
		Digests: digests})
	if err != nil {
		return false, 0, err
	}
	var wanted []byte
	for i := len(r.Tiers) - 1; i >= 0; i-- { // the first of the prompt before the others
		if there = there || r.Tiers[i] != 0; w.wants(uint32(r.Tiers[i])) {
			wanted = append(wanted, digests[32*i:32*i+32]...)
		}
	}
	if len(wanted) == 0 {
		return there, 0, nil
	}
	answer, err := w.client.Promote(ctx, &cognitorav1.PromoteRequest{Namespace: namespace, Layer: layer,
		Digests: wanted})
	if err != nil {
		return there, 0, err
	}
	return there || answer.Ok > 0, int(answer.Ok), nil
}
