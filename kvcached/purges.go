package kvcached

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/replace"
	"github.com/cognitora/dataplane/kvcached/fleet"
	"github.com/cognitora/dataplane/kvcached/purge"
)

// Timing of reads and writes of etcd's list of purges.
const (
	registerTries  = 16 // attempts, because another cache may write first
	refreshFirst   = 100 * time.Millisecond
	refreshLast    = time.Second
	askPeersFirst  = time.Second // pause before a start without etcd asks other caches
	askPeersPause  = 2 * time.Second
	restoreWithin  = 2 * time.Second // a start waits for the lists of other caches
	restoreAtOnce  = 64              // caches asked at a time
	rememberedFile = "peers.json"
)

// purges keeps this cache's list of purges in step with etcd's. purges implements fleet.Register.
type purges struct {
	config *FleetConfig
	dir    string // the data directory; empty: there is none
	ledger *purge.Ledger
	log    *slog.Logger
	client atomic.Pointer[cluster.Client] // nil: etcd was not reached yet
	// turn, of 1, is held from the read of etcd's list until the list is carried out.
	turn *semaphore.Weighted
	view *fleet.View
	last []fleet.Member // caches of the last run
	once sync.Once
	done chan struct{} // closed when the list was carried out for the first time
}

// Append belongs to fleet.Register.
func (p *purges) Append(ctx context.Context, s purge.Selector) (*fleet.Appended, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	if err := p.turn.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("%w: %w", purge.ErrNoEtcd, err)
	}
	defer p.turn.Release(1)
	mine := p.ledger.List()
	list, caches, err := p.write(ctx, mine, func(merged *purge.List) (*purge.List, error) { return merged.With(s) })
	if err != nil {
		p.log.Warn("a purge was not begun", "error", err)
		return nil, err
	}
	out := &fleet.Appended{List: list}
	out.Here.Blocks, out.Here.Err = p.ledger.Replace(ctx, mine, list)
	for _, e := range caches {
		m, err := p.config.member(e)
		if err != nil { // this host is in the list of hosts that have not confirmed
			m = fleet.Member{ID: cluster.CacheOf(e.Key), Address: "unknown"}
		}
		out.Caches = append(out.Caches, m)
	}
	return out, nil
}

// Refresh belongs to fleet.Register.
func (p *purges) Refresh(ctx context.Context) error {
	if err := p.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer p.turn.Release(1)
	mine := p.ledger.List()
	list, _, err := p.write(ctx, mine, asItIs)
	if err == nil {
		_, err = p.ledger.Replace(ctx, mine, list)
	}
	return err
}

// current says that this cache has carried out etcd's list, or the purges of other caches if etcd
// had lost the list.
func (p *purges) current() {
	p.once.Do(func() {
		close(p.done)
		p.view.Show()
	})
}

// pending tells whether current was not called yet.
func (p *purges) pending() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// write merges mine into etcd's list, applies change and writes the result to etcd. write returns
// the new list. If the list was written, write also returns the caches that etcd lists at that
// moment.
func (p *purges) write(ctx context.Context, mine *purge.List, change func(*purge.List) (*purge.List, error)) (
	*purge.List, []cluster.Entry, error) {
	client := p.client.Load()
	if client == nil {
		return nil, nil, purge.ErrNoEtcd
	}
	for range registerTries {
		there, err := client.Purges(ctx)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", purge.ErrNoEtcd, err)
		}
		var theirs *purge.List
		if there.Value != nil {
			if theirs, err = purge.Parse(there.Value); err != nil {
				return nil, nil, purge.Refused(fmt.Sprintf("etcd's %s cannot be read, so no host has confirmed the "+
					"purge: %v; delete the key, and the caches write what they know", cluster.PurgesKey, err))
			}
		}
		list, err := purge.Merge(mine, theirs)
		if err == nil {
			list, err = change(list)
		}
		if err != nil || list == theirs {
			return list, nil, err
		}
		caches, written, err := client.ReplacePurges(ctx, there, list.Encode())
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", purge.ErrNoEtcd, err)
		}
		if written {
			return list, caches, nil
		}
	}
	return nil, nil, purge.Refused("other caches write to etcd's list of purges all the time, so no host has " +
		"confirmed " +
		"the purge; purge again")
}

// follow carries out each new state of etcd's list until ctx ends.
func (p *purges) follow(ctx context.Context, client *cluster.Client) {
	p.client.Store(client)
	wake := make(chan struct{}, 1)
	changed := func() { await.Wake(wake) }
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		_ = client.Watch(ctx, cluster.PurgesKey, cluster.Handler{ // the end of ctx is Watch's only error
			List:   func(cluster.Listing) { changed() },
			Put:    func(cluster.Entry) { changed() },
			Delete: func(string) { changed() },
		})
	})
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		}
		if p.pending() {
			p.restore(ctx)
		}
		for pause := refreshFirst; ; pause = min(2*pause, refreshLast) {
			err := p.Refresh(ctx)
			if err == nil {
				p.current()
				break
			}
			if ctx.Err() != nil {
				return
			}
			if pause == refreshFirst {
				p.log.Warn("the fleet's purges could not be read or carried out, trying on", "error", err)
			}
			if !await.For(ctx, pause) {
				return
			}
		}
	}
}

// askPeers asks the caches of the last run for the list of purges, until one of them has just read
// etcd's list.
func (p *purges) askPeers(ctx context.Context) {
	peers := p.last
	for pause := askPeersFirst; len(peers) > 0; pause = askPeersPause {
		select {
		case <-ctx.Done():
			return
		case <-p.done:
			return
		case <-time.After(pause):
		}
		for i := range peers {
			list, fresh, err := p.view.PurgesOf(ctx, &peers[i])
			if err == nil && fresh {
				err = p.adopt(ctx, list)
			}
			if err == nil && fresh {
				p.log.Info("the fleet's purges were read from another cache, etcd being away", "cache", peers[i].ID)
				p.current()
				return
			}
			p.log.Debug("another cache did not tell the fleet's purges", "cache", peers[i].ID, "error", err)
		}
	}
}

// adopt carries out a list that another cache has just read from etcd.
func (p *purges) adopt(ctx context.Context, list *purge.List) error {
	if err := p.turn.Acquire(ctx, 1); err != nil {
		return err
	}
	defer p.turn.Release(1)
	known := p.ledger.List()
	if known.History == 0 && known.Revision == 0 { // this cache was in no fleet before
		_, err := p.ledger.Replace(ctx, known, list)
		return err
	}
	_, err := p.ledger.Take(ctx, list)
	return err
}

// restore asks the other caches, and the caches of the last run, for their lists. Then restore adds
// the missing purges to etcd's list. A start calls restore before it reads etcd's list, because
// etcd may have lost data. restore does not wait for a cache that does not answer in time.
func (p *purges) restore(ctx context.Context) {
	peers := p.view.Others()
	for _, m := range p.last {
		if !slices.ContainsFunc(peers, func(o fleet.Member) bool { return o.ID == m.ID }) {
			peers = append(peers, m)
		}
	}
	within, cancel := context.WithTimeout(ctx, restoreWithin)
	defer cancel()
	lists := make([]*purge.List, len(peers))
	var asking errgroup.Group
	asking.SetLimit(restoreAtOnce)
	for i := range peers {
		asking.Go(func() (err error) {
			if lists[i], _, err = p.view.PurgesOf(within, &peers[i]); err != nil {
				p.log.Debug("another cache did not tell its list of purges", "cache", peers[i].ID, "error", err)
			}
			return nil
		})
	}
	_ = asking.Wait()
	for i, list := range lists {
		if list == nil || list.History == 0 {
			continue
		}
		if _, _, err := p.write(ctx, list, asItIs); err != nil {
			p.log.Warn("another cache's list of purges could not be compared with etcd's", "cache", peers[i].ID,
				"error", err)
		}
	}
}

// asItIs leaves the list as it is, so that write only merges.
func asItIs(merged *purge.List) (*purge.List, error) { return merged, nil }

// remembered returns the caches of the last run.
func (p *purges) remembered() (peers []fleet.Member) {
	if p.dir == "" {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(p.dir, rememberedFile))
	if err == nil {
		err = json.Unmarshal(text, &peers)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.log.Warn("the caches of the last run are not known", "error", err)
		return nil
	}
	return peers
}

// remember saves the caches that etcd lists, for a start without etcd.
func (p *purges) remember(peers []fleet.Member) {
	if p.dir == "" || len(peers) == 0 {
		return
	}
	text, err := json.Marshal(peers)
	if err == nil {
		err = replace.Bytes(filepath.Join(p.dir, rememberedFile), 0o600, text)
	}
	if err != nil {
		p.log.Warn("the caches of the fleet cannot be kept for the next start", "error", err)
	}
}
