package fleet

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// askedAtOnce is how many hosts are asked at a time when all are.
const askedAtOnce = 64

// askEach asks hosts at the same time. Its error is a *store.HostsError with those that could not
// be asked.
func (v *View) askEach(ctx context.Context, hosts []string, limit time.Duration,
	ask func(context.Context, *Member, *transport.Peer) error) error {
	r := v.roster.Load()
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	var mu sync.Mutex
	var failed store.HostsError
	for _, id := range hosts {
		m := r.member(id)
		if m == nil || m.ID == v.o.Self {
			continue // it has left
		}
		group.Go(func() error {
			err := v.within(ctx, limit, m, func(ctx context.Context, peer *transport.Peer) error {
				return ask(ctx, m, peer)
			})
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed.Hosts, failed.Err = append(failed.Hosts, m.ID), err
			}
			return nil
		})
	}
	_ = group.Wait()
	if err := ctx.Err(); err != nil && failed.Err != nil {
		return context.Cause(ctx)
	}
	if failed.Err == nil {
		return nil
	}
	slices.Sort(failed.Hosts)
	failed.Until = time.Now().Add(v.o.Lease)
	return &failed
}

// Find is StatAll that is certain of clients' keys, and of what may be one because its namespace is
// not known here: each holder is asked, and where the keeper may not know all of them every host
// is. With an error, a *store.HostsError, a host that may have one could not be asked.
func (v *View) Find(ctx context.Context, addrs []block.Addr, out []store.Info) error {
	if !v.joining.joined.Load() {
		for i := range addrs {
			if err := v.unsure(&addrs[i]); err != nil {
				return err
			}
		}
	}
	if err := v.Store.StatAll(ctx, addrs, out); err != nil || v.alone() {
		return err
	}
	s := search{v: v}
	var others []int
	for i := range addrs {
		switch {
		case out[i].Tiers != 0:
		case v.mayBeKey(&addrs[i]):
			s.addrs, s.at = append(s.addrs, addrs[i]), append(s.at, i)
		default:
			others = append(others, i)
		}
	}
	if len(others) > 0 {
		v.statRemote(ctx, addrs, out, others)
	}
	if len(s.addrs) == 0 {
		return nil
	}
	s.found = make([]store.Info, len(s.addrs))
	err := s.run(ctx)
	for i, at := range s.at {
		out[at] = s.found[i]
	}
	return err
}

// search is for keys that are not on this host.
type search struct {
	v     *View
	addrs []block.Addr
	at    []int // where they were asked for

	mu    sync.Mutex
	found []store.Info
}

// run asks the hosts that the keepers name, and then, about what is not there and not known for
// certain, all others.
func (s *search) run(ctx context.Context) error {
	located, _ := s.v.locate(ctx, s.addrs)
	named := map[string][]int{}
	for i := range located {
		for _, h := range located[i].holders {
			named[h.host] = append(named[h.host], i)
		}
	}
	failed := s.ask(ctx, named)
	rest := map[string][]int{}
	everybody := s.v.everybody()
	for i := range located {
		if s.found[i].Tiers != 0 || located[i].certain() {
			continue
		}
		for _, id := range everybody {
			if !slices.Contains(named[id], i) {
				rest[id] = append(rest[id], i)
			}
		}
	}
	if more := s.ask(ctx, rest); failed == nil {
		failed = more
	}
	for i := range s.found {
		if s.found[i].Tiers == 0 {
			return failed
		}
	}
	return nil // whoever could not be asked, all are there
}

// ask asks each host about some.
func (s *search) ask(ctx context.Context, hosts map[string][]int) error {
	ids := make([]string, 0, len(hosts))
	for id := range hosts {
		ids = append(ids, id)
	}
	return s.v.askEach(ctx, ids, dropWithin, func(ctx context.Context, m *Member, peer *transport.Peer) error {
		for some := range slices.Chunk(hosts[m.ID], wire.MaxBatch) {
			question, infos := make([]block.Addr, len(some)), make([]wire.Info, len(some))
			for i, from := range some {
				question[i] = s.addrs[from]
			}
			if err := peer.Stat(ctx, question, infos); err != nil {
				return err
			}
			s.take(question, some, infos)
		}
		return nil
	})
}

// take notes what a host has.
func (s *search) take(question []block.Addr, some []int, infos []wire.Info) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, info := range infos {
		if info.Tiers != 0 {
			s.found[some[i]] = store.Info{
				Item: store.Item{Addr: question[i], Expires: info.Expires}, Length: int(info.Length), CRC: info.CRC,
				Tiers: store.Remote,
			}
		}
	}
}

// seek asks all hosts for a key whose keeper has not been told everything yet.
func (v *View) seek(ctx context.Context, a block.Addr) (hosts []location) {
	var mu sync.Mutex
	_ = v.askEach(ctx, v.everybody(), v.o.LocateTimeout,
		func(ctx context.Context, m *Member, peer *transport.Peer) error {
			var info [1]wire.Info
			err := peer.Stat(ctx, []block.Addr{a}, info[:])
			if err == nil && info[0].Tiers != 0 {
				mu.Lock()
				defer mu.Unlock()
				hosts = append(hosts, location{m.ID, uint32(info[0].Length)})
			}
			return err
		})
	return hosts
}

// Reachable tells of each block whether it may be anywhere; each keeper is asked once. What it says
// no to is a miss.
func (v *View) Reachable(ctx context.Context, addrs []block.Addr, out []bool) error {
	infos := make([]store.Info, len(addrs))
	if err := v.Store.StatAll(ctx, addrs, infos); err != nil {
		return err
	}
	var missing []block.Addr
	var at []int
	for i := range infos {
		if out[i] = infos[i].Tiers != 0; !out[i] {
			missing, at = append(missing, addrs[i]), append(at, i)
		}
	}
	if v.alone() {
		return nil
	}
	located, err := v.locate(ctx, missing)
	for i := range located {
		out[at[i]] = len(located[i].holders) > 0 || located[i].partial && err == nil && v.mayBeKey(&missing[i])
	}
	return nil
}
