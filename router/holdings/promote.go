package holdings

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cognitora/dataplane/internal/shares"
	"github.com/cognitora/dataplane/kv/block"
	cognitorav1 "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// Promote says which blocks a daemon is asked to bring into RAM ahead of a request to its host.
type Promote uint8

// These are the values of Promote.
const (
	PromoteOff   Promote = iota
	PromoteDisk          // blocks that the host has on SSD only
	PromoteFleet         // also blocks that only other hosts have
)

// These constants bound promotions. A promotion that finds the queue full is dropped and counted,
// and so is one whose cache has promoteLater others. One promotion of a cache runs at a time.
// Promotions with a wait have places of their own, and run at once. One gets a place only if its
// cache has fewer than are free, and so has the host that is to store its blocks. Otherwise it is
// dropped and counted. So one host that is stuck never takes all places.
const (
	promotions     = 64   // waiting and running
	waitings       = 128  // running, with a wait
	promoteWorkers = 16   // running
	promoteLater   = 3    // waiting for one cache
	promoteBlocks  = 1024 // leading blocks of one prompt
	promoteWithin  = 10 * time.Second
	promoteSpaces  = 8               // namespaces searched for a prompt's blocks
	comingBlocks   = 4096            // leading blocks of one prompt that are waited for
	comingObjects  = 64              // objects that all ranks get before the next ones are waited for
	comingSlack    = 5 * time.Second // from the end of the wait on, for blocks on their way
)

// Promotion is a request to a daemon to bring blocks into RAM. Map.Promotion makes a Promotion and
// Map.Ask sends it.
type Promotion struct {
	// Digests holds consecutive blocks, 32 bytes each, the last block first.
	Digests []byte
	// Last is the number of the last block in the prompt; the prompt's first block is 0.
	Last int
	// Before is the number of wanted blocks before those in Digests. The blocks' digests are
	// unknown; the daemon finds these blocks as parents.
	Before int
	// Wait is the wait for blocks that no host has yet.
	Wait Wait

	cache *cache
	from  *cache // another daemon, which has the most of the prompt; nil: none has more
	model string
	reads []name // of the node; nil: all
}

// Wait says how a daemon waits for blocks that no host has yet. The zero Wait is none.
type Wait struct {
	For   time.Duration   // at most
	From  string          // address of the cache that is about to store the blocks
	Ended context.Context // done when nobody needs the blocks any more; ends the wait
}

// Add adds the block before the ones already added.
func (p *Promotion) Add(digest *[32]byte) { p.Digests = append(p.Digests, digest[:]...) }

// promoter holds the promotions of a Map.
type promoter struct {
	mode Promote
	now  lane // promotions of blocks that are somewhere
	next lane // promotions with a wait

	asked, from *shares.Shares // of next's places, by the cache that is asked and by the one that stores

	begun, dropped, failed, blocks atomic.Uint64
}

// lane has the promotions that wait for one of its workers, and those that are free.
type lane struct {
	free  chan *Promotion
	queue chan *Promotion
}

func newPromoter(mode Promote) *promoter {
	return &promoter{mode: mode, now: newLane(promotions), next: newLane(waitings), asked: shares.New(waitings),
		from: shares.New(waitings)}
}

func newLane(places int) lane {
	l := lane{make(chan *Promotion, places), make(chan *Promotion, places)}
	for range places {
		l.free <- &Promotion{}
	}
	return l
}

// take returns a free promotion for a cache, or nil if there is none for it.
func (p *promoter) take(c *cache, w Wait) *Promotion {
	of := &p.now
	if w.For > 0 {
		of = &p.next
		if !p.asked.Take(c.id) {
			return nil
		}
		if !p.from.Take(w.From) {
			p.asked.Give(c.id)
			return nil
		}
	}
	select {
	case taken := <-of.free:
		taken.cache, taken.Wait = c, w
		return taken
	default: // only of now: next has as many as there are shares
		return nil
	}
}

// give makes a promotion free.
func (p *promoter) give(done *Promotion) {
	if done.Wait.For == 0 {
		p.now.free <- done
		return
	}
	c, from := done.cache.id, done.Wait.From
	p.next.free <- done
	p.asked.Give(c)
	p.from.Give(from)
}

// Wanted returns the range of blocks, from (included) up to to (excluded), that should come into
// RAM for a request to node i of the question.
func (m *Map) Wanted(q *Query, i int, r Reach) (from, to int) {
	if m.promoter.mode == PromoteOff || i >= len(q.hosts) || q.cache(i) == nil {
		return 0, 0
	}
	reach := r.Disk
	if m.promoter.mode == PromoteFleet {
		reach = max(reach, r.Shared)
	}
	from = int(max(r.Device, r.Host, 0))
	return from, min(int(reach), from+promoteBlocks)
}

// Coming returns the range of blocks, from (included) up to to (excluded), that should come into
// RAM for a request to node i of the question while another host stores them. blocks is the
// prompt's length in blocks.
func (m *Map) Coming(q *Query, i int, r Reach, blocks int) (from, to int) {
	if m.promoter.mode == PromoteOff || i >= len(q.hosts) || q.cache(i) == nil {
		return 0, 0
	}
	from = int(max(r.Device, r.Host, 0))
	return from, min(blocks, from+comingBlocks)
}

// Promotion returns a promotion for node i of a question, or nil if there is no place for another
// one. Promotion itself does not wait. Without a wait it allocates only until the pool of
// promotions is full. The caller must pass the promotion to Ask.
func (m *Map) Promotion(q *Query, i int, model string, w Wait) *Promotion {
	p := m.promoter.take(q.cache(i), w)
	if p == nil {
		m.promoter.dropped.Add(1)
		return nil
	}
	p.model, p.reads, p.Digests, p.Last, p.Before = model, q.reads[i], p.Digests[:0], 0, 0
	p.from = q.source(i)
	return p
}

// Ask queues a promotion to run in the background.
func (m *Map) Ask(p *Promotion) {
	of := &m.promoter.now
	if p.Wait.For > 0 {
		of = &m.promoter.next
	}
	of.queue <- p // the queue has room for all promotions
}

// promote runs promotions of a lane until ctx ends.
func (m *Map) promote(ctx context.Context, of *lane) {
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-of.queue:
			m.perform(ctx, p)
		}
	}
}

// perform runs a promotion, and then those that have waited for its cache. If the cache is busy, p
// waits for it or is dropped.
func (m *Map) perform(ctx context.Context, p *Promotion) {
	if p.Wait.For > 0 {
		m.run(ctx, p)
		return
	}
	turns := &p.cache.turns
	switch turns.take(p) {
	case waits:
	case tooMany:
		m.promoter.dropped.Add(1)
		m.promoter.give(p)
	case runs:
		for ; p != nil; p = turns.next() {
			m.run(ctx, p)
		}
	}
}

func (m *Map) run(ctx context.Context, p *Promotion) {
	m.promoter.begun.Add(1)
	n, err := m.bring(ctx, p)
	m.promoter.blocks.Add(uint64(n))
	if err != nil && ctx.Err() == nil {
		m.promoter.failed.Add(1)
		m.o.Logger.Debug("blocks are not promoted", "cache", p.cache.id, "error", err)
	}
	m.promoter.give(p)
}

// bring asks the daemon for the blocks in each namespace that may have them. bring returns how many
// came into RAM.
func (m *Map) bring(ctx context.Context, p *Promotion) (n int, err error) {
	client := p.cache.client.Load()
	if client == nil || len(p.Digests) == 0 {
		return 0, nil
	}
	if p.Wait.For > 0 {
		return m.awaits(ctx, *client, p)
	}
	ctx, cancel := context.WithTimeout(ctx, promoteWithin)
	defer cancel()
	w := wish{client: *client, fleet: m.promoter.mode == PromoteFleet}
	if w.fleet && p.from != nil {
		w.from = p.from.client.Load()
	}
	for _, s := range m.spaces.of(p.model, p.reads) {
		here, err := w.bring(ctx, s, p)
		if n += here; err != nil {
			return n, err
		}
	}
	return n, nil
}

// errCame ends the waits in other namespaces once one of them has all blocks.
var errCame = errors.New("all blocks came")

// awaits asks the daemon to bring the blocks as they are stored, in all namespaces at once. awaits
// ends when one namespace has them all. An error in one namespace ends no wait in another one.
func (m *Map) awaits(ctx context.Context, client cognitorav1.KvClient, p *Promotion) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.Wait.For+comingSlack)
	defer cancel()
	defer context.AfterFunc(p.Wait.Ended, cancel)()
	w := waiting{client, p.Wait.From, time.Now().Add(p.Wait.For)}
	all, life := errgroup.WithContext(ctx)
	var came atomic.Int64
	var failed faults
	for _, s := range m.spaces.of(p.model, p.reads) {
		digests, before := p.objects(s.Blocks())
		if len(digests) == 0 || before > 0 || s.layer != block.LayerAll || s.chunks {
			continue // engines that hand blocks over store whole objects of all layers
		}
		all.Go(func() error {
			here, err := w.objects(life, &s, first(digests))
			failed.add(err)
			if came.Add(int64(here)); here == len(digests)/32*len(s.ranks()) {
				return errCame
			}
			return nil
		})
	}
	if all.Wait() != nil || p.Wait.Ended.Err() != nil {
		return int(came.Load()), nil
	}
	return int(came.Load()), failed.err
}

// faults collects the errors of goroutines.
type faults struct {
	mu  sync.Mutex
	err error
}

func (f *faults) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = errors.Join(f.err, err)
}

// waiting is a running promotion with a wait.
type waiting struct {
	client cognitorav1.KvClient
	from   string
	until  time.Time
}

// objects waits for the objects of a namespace, some at a time, and returns how many came in all
// ranks. The ranks store an object at about the same time. So only the first rank is asked for
// objects that are not stored yet, and the others once it has them.
func (w *waiting) objects(ctx context.Context, s *space, digests []byte) (n int, err error) {
	ranks := s.ranks()
	for some := range slices.Chunk(digests, 32*comingObjects) {
		came, err := w.rank(ctx, ranks[0], some)
		if n += came; err != nil {
			return n, err
		}
		here, err := w.others(ctx, ranks[1:], some)
		if n += here; err != nil || came < len(some)/32 {
			return n, err
		}
	}
	return n, nil
}

// others waits for the objects in some ranks at once, and returns how many came.
func (w *waiting) others(ctx context.Context, ranks []string, digests []byte) (n int, err error) {
	var all sync.WaitGroup
	var came atomic.Int64
	var failed faults
	for _, rank := range ranks {
		all.Go(func() {
			here, err := w.rank(ctx, rank, digests)
			came.Add(int64(here))
			failed.add(err)
		})
	}
	all.Wait()
	return int(came.Load()), failed.err
}

// rank waits for the objects in a rank, and returns how many came. After until it takes what is
// there.
func (w *waiting) rank(ctx context.Context, rank string, digests []byte) (n int, err error) {
	wait := max(time.Until(w.until), time.Millisecond)
	answer, err := w.client.Promote(ctx, &cognitorav1.PromoteRequest{Namespace: rank, Layer: block.LayerAll,
		Digests: digests, WaitMs: uint32(wait.Milliseconds()), From: w.from})
	return int(answer.GetOk()), err
}

// first returns digests, of which the last comes first, with the first one first.
func first(digests []byte) []byte {
	out := make([]byte, 0, len(digests))
	for at := len(digests) - 32; at >= 0; at -= 32 {
		out = append(out, digests[at:at+32]...)
	}
	return out
}

// wish is a running promotion.
type wish struct {
	client cognitorav1.KvClient
	from   *cognitorav1.KvClient // the daemon that has the most of the prompt; nil: client, or not connected
	fleet  bool
}

// wants says whether a block in the given tiers is to be promoted.
func (w *wish) wants(tiers uint32) bool {
	const ram = uint32(cognitorav1.Tier_TIER_HOST)
	return tiers&ram == 0 && (w.fleet || tiers&uint32(cognitorav1.Tier_TIER_DISK) != 0)
}

// bring promotes the objects of a namespace in all its ranks and layers.
func (w *wish) bring(ctx context.Context, s space, p *Promotion) (n int, err error) {
	digests, before := p.objects(s.Blocks())
	if len(digests) == 0 {
		return 0, nil
	}
	if s.chunks {
		return w.bringChunks(ctx, s, digests, before)
	}
	if digests, err = w.ancestors(ctx, s, digests, before); err != nil {
		return 0, err
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

// maxLayers bounds the layers searched, where each layer has blocks of its own.
const maxLayers = 512

// objects returns the addresses of the wanted objects that have some blocks each: the digests of
// the blocks that end an object, the last one first. A last object of which the prompt has only the
// beginning is left out. before is the number of objects before them whose digests are unknown.
func (p *Promotion) objects(blocks int) (digests []byte, before int) {
	n := len(p.Digests) / 32
	switch blocks {
	case 0: // such objects count nowhere
		return nil, 0
	case 1:
		return p.Digests, p.Before
	}
	first := p.Last - n + 1 - p.Before // wanted block
	for i := range n {
		if at := p.Last - i; (at+1)%blocks == 0 {
			digests = append(digests, p.Digests[32*i:32*i+32]...)
			before = (at - first) / blocks
		}
	}
	return digests, before
}

// ancestors adds the digests of preceding objects, as far as the daemon knows them.
func (w *wish) ancestors(ctx context.Context, s space, digests []byte, before int) ([]byte, error) {
	last := digests[len(digests)-32:]
	for range before {
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

// some promotes the blocks of one layer of a rank. some returns true if the layer has blocks.
func (w *wish) some(ctx context.Context, namespace string, layer uint32,
	digests []byte) (there bool, n int, err error) {
	r, err := w.client.BatchLookup(ctx, &cognitorav1.BatchLookupRequest{Namespace: namespace, Layer: layer,
		Digests: digests})
	if err != nil {
		return false, 0, err
	}
	var wanted []byte
	for i := len(r.Tiers) - 1; i >= 0; i-- { // the prompt's first blocks go first
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
