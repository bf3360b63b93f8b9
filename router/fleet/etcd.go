package fleet

import (
	"context"
	"crypto/tls"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/relay"
)

// etcdState holds the last data from etcd, and whether etcd still answers.
type etcdState struct {
	cordons    map[string]cluster.Cordon
	heard      bool // etcd has listed the nodes once, or is not used
	stale      bool
	staleSince time.Time
}

func (e *etcdState) init(used bool) {
	e.cordons = map[string]cluster.Cordon{}
	e.heard = !used
	if used {
		e.stale, e.staleSince = true, time.Now()
	}
}

// followEtcd watches the three prefixes. Every change becomes an event for the fleet's goroutine.
func (f *Fleet) followEtcd(ctx context.Context) {
	if f.o.Cluster == nil {
		return
	}
	for _, k := range []struct {
		prefix string
		list   func(*Fleet, cluster.Listing)
		put    func(*Fleet, cluster.Entry)
		remove func(f *Fleet, key string)
		lose   func(*Fleet, error)
	}{
		{cluster.NodesPrefix, (*Fleet).listNodes, (*Fleet).putNode, (*Fleet).deleteNode, (*Fleet).loseEtcd},
		{cluster.CordonPrefix, (*Fleet).listCordons, (*Fleet).putCordon, (*Fleet).deleteCordon, func(*Fleet, error) {}},
		{cluster.ModelsPrefix, (*Fleet).listModels, (*Fleet).putModel, (*Fleet).deleteModel, func(*Fleet, error) {}},
	} {
		f.follow(ctx, k.prefix, cluster.Handler{
			List:   func(l cluster.Listing) { f.send(ctx, func(f *Fleet) { k.list(f, l) }) },
			Put:    func(e cluster.Entry) { f.send(ctx, func(f *Fleet) { k.put(f, e) }) },
			Delete: func(key string) { f.send(ctx, func(f *Fleet) { k.remove(f, key) }) },
			Lost:   func(err error) { f.send(ctx, func(f *Fleet) { k.lose(f, err) }) },
		})
	}
}

// take passes the entries of a listing to put, and returns their keys without the prefix.
func take(l cluster.Listing, prefix string, put func(cluster.Entry)) map[string]bool {
	listed := map[string]bool{}
	for _, e := range l.Entries {
		put(e)
		listed[strings.TrimPrefix(e.Key, prefix)] = true
	}
	return listed
}

func (f *Fleet) follow(ctx context.Context, prefix string, h cluster.Handler) {
	f.wg.Go(func() {
		if err := f.o.Cluster.Watch(ctx, prefix, h); err != nil {
			f.o.Logger.Error("etcd is not followed any more", "prefix", prefix, "error", err)
		}
	})
}

func (f *Fleet) loseEtcd(err error) {
	if !f.etcd.heard {
		f.o.Logger.Warn("etcd does not answer, so its nodes are not known yet; trying on", "endpoints",
			f.o.Cluster.Endpoints(), "error", err)
		return
	}
	if f.etcd.stale {
		return
	}
	f.etcd.stale, f.etcd.staleSince, f.dirty = true, time.Now(), true
	f.o.Logger.Warn("etcd does not answer; serving with the nodes known last", "error", err)
}

// listNodes brings the etcd members in line with a complete listing. After an outage an unlisted
// node stays for the grace period, because its agent needs time to register again.
func (f *Fleet) listNodes(l cluster.Listing) {
	now := time.Now()
	if f.etcd.stale && l.AfterOutage {
		f.o.Logger.Info("etcd answers again", "nodes", len(l.Entries), "data_lost", l.DataLost)
	}
	f.etcd.heard, f.etcd.stale, f.etcd.staleSince, f.dirty = true, false, time.Time{}, true
	listed := take(l, cluster.NodesPrefix, f.putNode)
	for id, m := range f.members {
		if m.node.Source != Etcd {
			continue
		}
		m.stampAt = now // no agent could write a heartbeat during the outage
		switch {
		case listed[id]:
		case !l.AfterOutage && !l.DataLost:
			f.remove(id)
		case m.missing.IsZero():
			m.missing = now
		}
	}
	if !l.DataLost {
		f.solveOthers(ofNodeKey, func(id string) bool { return listed[id] })
	}
}

// putNode records one heartbeat. putNode ignores an unusable value. putNode uses the rest of the
// value when only an address in the value is unusable.
func (f *Fleet) putNode(e cluster.Entry) {
	id := strings.TrimPrefix(e.Key, cluster.NodesPrefix)
	health, err := cluster.ParseNodeHealth(id, e.Value)
	if err != nil {
		f.malformed.Add(1)
		f.problem(ofNodeKey, id, err.Error())
		return
	}
	f.heartbeat(health, time.Now())
}

// Beat records heartbeats that came at now, as from etcd, and publishes what they change. Beat
// serves simulations, whose fleets follow no etcd: call it only for a fleet that does not run.
func (f *Fleet) Beat(now time.Time, all ...*cluster.NodeHealth) {
	for _, h := range all {
		f.heartbeat(h, now)
	}
	if f.dirty {
		f.publish()
	}
}

// heartbeat records a heartbeat that came at now. A node joins by its first heartbeat.
func (f *Fleet) heartbeat(health *cluster.NodeHealth, now time.Time) {
	id := health.NodeID
	m := f.members[id]
	if m != nil && m.node.Source == Static {
		f.problem(ofNodeKey, id, hidden)
		return
	}
	if m != nil && m.identity != health.Address {
		f.remove(id)
		m = nil
	}
	if m == nil {
		if m = f.addEtcd(health); m == nil {
			return
		}
	}
	if health.LeftOut != nil {
		f.problem(ofNodeKey, id, health.LeftOut.Error())
	} else {
		f.solved(ofNodeKey, id)
	}
	f.update(m, health, now)
}

func (f *Fleet) addEtcd(h *cluster.NodeHealth) *member {
	at, err := address.Parse(h.Address)
	if err != nil {
		f.problem(ofNodeKey, h.NodeID, err.Error())
		return nil
	}
	target := relay.Target{Network: at.Network, Addr: at.Addr, Host: at.Host, BasePath: at.BasePath}
	if at.TLS {
		target.TLS = f.agentTLS()
	}
	return f.add(h.NodeID, h.Address, Etcd, etcdInfo(h), target)
}

// update takes a heartbeat of a member, which came at now.
func (f *Fleet) update(m *member, h *cluster.NodeHealth, now time.Time) {
	if m.health == nil || m.health.Stamp != h.Stamp || h.Stamp == 0 {
		m.stampAt = now
		m.node.setFlag(flagSilent, false)
	}
	if m.health != nil && (m.health.KVEpoch != h.KVEpoch) {
		f.joinIndex(m.node)
	}
	m.health, m.missing = h, time.Time{}
	m.node.setFlag(flagNotReady, !h.Ready)
	if info := etcdInfo(h); !sameInfo(info, m.node.Info()) {
		m.node.setInfo(info)
		f.fitRanks(m.node)
		f.dirty = true
	}
	m.node.setLoad(beatOf(h, now), now) // needs the block size and the ranks of this heartbeat
	m.node.takeAdapters(h, now)
	f.followSignals(m, h)
	f.tell(m)
}

func (f *Fleet) deleteNode(key string) {
	id := strings.TrimPrefix(key, cluster.NodesPrefix)
	f.solved(ofNodeKey, id)
	if m := f.members[id]; m != nil && m.node.Source == Etcd {
		f.remove(id)
	}
}

// sweepEtcd removes the nodes that did not come back after an outage, and notices heartbeats that
// have stopped. sweepEtcd does nothing while etcd does not answer.
func (f *Fleet) sweepEtcd(now time.Time) {
	if f.etcd.stale {
		return
	}
	for id, m := range f.members {
		if m.node.Source != Etcd {
			continue
		}
		if !m.missing.IsZero() && now.Sub(m.missing) > m.patience(f.o.Grace) {
			f.remove(id)
			continue
		}
		m.node.setFlag(flagSilent, m.missing.IsZero() && now.Sub(m.stampAt) > m.patience(f.o.StaleAfter))
		f.tell(m)
	}
}

// patience returns limit scaled to this agent's heartbeat. limit fits the default heartbeat.
func (m *member) patience(limit time.Duration) time.Duration {
	if m.health == nil {
		return limit
	}
	return time.Duration(float64(limit) * float64(m.health.Heartbeat()) / float64(cluster.DefaultHeartbeat))
}

func etcdInfo(h *cluster.NodeHealth) *Info {
	info := &Info{
		Address: h.Address, Role: h.Role, Engine: h.Engine, Models: h.Models, Upstream: h.Models, Adapters: h.Listed(),
		Device: h.Device, GPUModel: h.GPUModel, DType: h.DType, TP: h.TP, DataParallel: h.DataParallel,
		VRAMBytes: h.VRAMBytes, MaxConcurrent: int32(h.MaxConcurrent),
		EngineSlots: int32(h.EngineSlots), BlockTokens: h.BlockTokens, Labels: h.Labels, Experts: h.Experts,
		EngineVersion: h.EngineVersion, MaxBatchedTokens: h.MaxBatchedTokens,
		KVAddress: h.KVAddress, KVEvents: h.KVEvents, KVEpoch: h.KVEpoch, Instance: h.Instance, Version: h.Version,
		Connector: h.Connector,
	}
	at, _ := address.Parse(h.Address) // checked by ParseNodeHealth
	info.setBootstrap(h.Bootstrap, at.Network, at.Addr)
	return info
}

// listCordons lifts the unlisted cordons. listCordons lifts none when etcd lost its data, because
// no operator lifted them.
func (f *Fleet) listCordons(l cluster.Listing) {
	listed := take(l, cluster.CordonPrefix, f.putCordon)
	if l.DataLost {
		if kept := f.unlisted(listed); len(kept) > 0 {
			f.o.Logger.Warn("etcd lost its data; the cordons known last stay in force until `cgn-ctl cluster "+
				"uncordon NODE` (with --unregistered for a static backend)",
				"cordons", len(kept), "nodes", kept[:min(len(kept), mostCordonsNamed)])
		}
		return
	}
	for id := range f.etcd.cordons {
		if !listed[id] {
			f.setCordon(id, cluster.Cordon{}, false)
		}
	}
}

// mostCordonsNamed bounds the nodes named in one log line.
const mostCordonsNamed = 16

// unlisted returns the nodes, sorted, whose cordons etcd does not list.
func (f *Fleet) unlisted(listed map[string]bool) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(f.etcd.cordons)), func(id string) bool { return listed[id] })
}

func (f *Fleet) putCordon(e cluster.Entry) {
	c := cluster.ParseCordon(e.Value)
	f.setCordon(strings.TrimPrefix(e.Key, cluster.CordonPrefix), c, !c.Open)
}

func (f *Fleet) deleteCordon(key string) {
	f.setCordon(strings.TrimPrefix(key, cluster.CordonPrefix), cluster.Cordon{}, false)
}

// setCordon cordons a node, or lifts the cordon. setCordon works on static nodes too. The cordon of
// an absent node waits for the node.
func (f *Fleet) setCordon(id string, c cluster.Cordon, on bool) {
	if was, known := f.etcd.cordons[id]; f.o.Cordoned != nil && (known != on || was != c) {
		what := ""
		if on {
			what = c.String()
		}
		f.o.Cordoned(id, what)
	}
	if on {
		f.etcd.cordons[id] = c
	} else {
		delete(f.etcd.cordons, id)
	}
	if m := f.members[id]; m != nil {
		f.applyCordon(m.node)
		f.tell(m)
	}
}

func (f *Fleet) applyCordon(n *Node) {
	c, on := f.etcd.cordons[n.ID]
	n.cordon.Store(nil)
	if on {
		n.cordon.Store(new(c.String()))
	}
	n.setFlag(flagCordoned, on && !c.Drain)
	n.setFlag(flagDraining, on && c.Drain)
}

// listModels forgets the unlisted models, unless etcd lost its data. A model with a malformed value
// keeps its last good value.
func (f *Fleet) listModels(l cluster.Listing) {
	listed := take(l, cluster.ModelsPrefix, f.putModel)
	if l.DataLost {
		return
	}
	for name := range f.settings.stored {
		if !listed[name] {
			f.unstore(name)
		}
	}
	f.noteSettings()
	f.solveOthers(ofModelKey, func(name string) bool { return listed[name] })
}

func (f *Fleet) putModel(e cluster.Entry) {
	name := strings.TrimPrefix(e.Key, cluster.ModelsPrefix)
	m, err := cluster.ParseModel(name, e.Value)
	if err != nil {
		f.malformed.Add(1)
		f.problem(ofModelKey, name, err.Error())
		return
	}
	f.solved(ofModelKey, name)
	if f.o.Stored != nil && !reflect.DeepEqual(f.settings.stored[name], m) {
		f.o.Stored(name, false)
	}
	f.settings.stored[name] = m
	f.noteSettings()
}

// unstore forgets a model's settings.
func (f *Fleet) unstore(name string) {
	if _, known := f.settings.stored[name]; known && f.o.Stored != nil {
		f.o.Stored(name, true)
	}
	delete(f.settings.stored, name)
}

func (f *Fleet) deleteModel(key string) {
	name := strings.TrimPrefix(key, cluster.ModelsPrefix)
	f.solved(ofModelKey, name)
	f.unstore(name)
	f.noteSettings()
}

// agentTLS returns the configuration for one https agent. The relay sets the server's name.
func (f *Fleet) agentTLS() *tls.Config {
	if f.o.AgentTLS != nil {
		return f.o.AgentTLS.Clone()
	}
	return &tls.Config{MinVersion: tls.VersionTLS12}
}
