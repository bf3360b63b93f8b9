package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/lora"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/health"
)

// hidden is the problem of an etcd node that has the id of a backend.
const hidden = "configured as a backend, so the node of this id in etcd is not used"

// staticState holds the configured backends and the last addresses of their DNS names.
type staticState struct {
	backends []prepared
	since    map[string]time.Time    // by URL: when the backend was configured
	resolved map[string][]netip.Addr // by DNS name
}

// names returns the DNS names of the backends.
func (s *staticState) names() (names []string) {
	for _, b := range s.backends {
		if name := b.dnsName(); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// urls lists the backends with a DNS name. An error begins with the list of urls.
func (s *staticState) urls(name string) string {
	var all []string
	for _, b := range s.backends {
		if b.dnsName() == name {
			all = append(all, b.URL)
		}
	}
	return "backend " + strings.Join(all, ", ") + ": "
}

// prepare validates a list of backends and reads its files. prepare refuses a list with one bad
// backend.
func prepare(backends []Backend) ([]prepared, error) {
	if err := CheckBackends(backends); err != nil {
		return nil, err
	}
	all := make([]prepared, 0, len(backends))
	for _, b := range backends {
		target, secrets, err := b.target()
		if err != nil {
			return nil, err
		}
		all = append(all, prepared{b, target, secrets})
	}
	return all, nil
}

// Reload replaces the static backends and reads the files they name. A node with the same id and
// URL stays, with its models, health and requests in flight. A node's next requests and checks use
// new connections when its key, CA or certificate has changed. A removed node finishes its running
// requests.
//
// A bad list is refused and changes nothing. Reload returns nil once the list is in force. The list
// never comes into force if Reload returns the error of ctx. Run must be running.
func (f *Fleet) Reload(ctx context.Context, backends []Backend) error {
	desired, err := prepare(backends)
	if err != nil {
		return err
	}
	return f.do(ctx, func(f *Fleet) { f.setStatic(desired) })
}

// Configure is Reload and SetModels together. A bad list of backends changes no setting of a model
// either, and one snapshot puts both in force.
func (f *Fleet) Configure(ctx context.Context, backends []Backend, models map[string]*cluster.Model) error {
	desired, err := prepare(backends)
	if err != nil {
		return err
	}
	return f.do(ctx, func(f *Fleet) {
		f.setModels(models)
		f.setStatic(desired)
	})
}

// do runs change on the fleet's goroutine and publishes. change never runs if do returns the error
// of ctx.
func (f *Fleet) do(ctx context.Context, change func(*Fleet)) error {
	var decided atomic.Bool
	done := make(chan struct{})
	f.send(ctx, func(f *Fleet) {
		if decided.Swap(true) {
			return
		}
		change(f)
		f.publish()
		close(done)
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	if !decided.Swap(true) {
		return ctx.Err()
	}
	<-done
	return nil
}

func (f *Fleet) setStatic(backends []prepared) {
	since := make(map[string]time.Time, len(backends))
	for _, b := range backends {
		if since[b.URL] = f.static.since[b.URL]; since[b.URL].IsZero() {
			since[b.URL] = time.Now()
		}
	}
	f.static.backends, f.static.since = backends, since
	names := f.static.names()
	f.solveOthers(ofName, func(name string) bool { return slices.Contains(names, name) })
	maps.DeleteFunc(f.static.resolved, func(name string, _ []netip.Addr) bool { return !slices.Contains(names, name) })
	f.syncStatic()
	select { // only the newest list counts
	case <-f.kickDNS:
	default:
	}
	f.kickDNS <- names
}

// syncStatic replaces the static members by the nodes of the configured backends at their current
// addresses.
func (f *Fleet) syncStatic() {
	wanted := map[string]endpoint{}
	for _, b := range f.static.backends {
		for _, e := range b.endpoints(f.static.resolved[b.dnsName()]) {
			wanted[e.id] = e
		}
	}
	for id, m := range f.members {
		if e, keep := wanted[id]; m.node.Source == Static && (!keep || e.identity != m.identity) {
			f.remove(id)
		}
	}
	f.solveOthers(ofBackend, func(id string) bool { _, there := wanted[id]; return there })
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		f.want(wanted[id])
	}
}

// want adds a static node or updates the existing one.
func (f *Fleet) want(e endpoint) {
	m := f.members[e.id]
	if m != nil && m.node.Source == Etcd {
		f.remove(e.id)
		f.problem(ofNodeKey, e.id, hidden)
		m = nil
	}
	if m == nil {
		if m = f.add(e.id, e.identity, Static, staticInfo(e.backend, e.target, discovery{}), e.target); m == nil {
			return
		}
		m.secrets = e.secrets
	}
	if m.secrets != e.secrets {
		m.secrets = e.secrets
		m.node.retarget(e.target)
	}
	m.backend = e.backend
	f.refresh(m)
}

// refresh brings a static node's Info in line with its configuration and its discovery.
func (f *Fleet) refresh(m *member) {
	d := m.node.asker.discovered()
	m.heard = d.asked || m.backend.Model != ""
	info := staticInfo(m.backend, m.node.Pool.Target(), d)
	none := d.asked && len(info.Models) == 0
	if why := m.wrong(d, info); why != "" {
		f.problem(ofBackend, m.node.ID, why)
	} else {
		f.solved(ofBackend, m.node.ID)
	}
	if !sameInfo(info, m.node.Info()) {
		m.node.setInfo(info)
		f.fitRanks(m.node)
		f.dirty = true
	}
	had := m.node.flags.Load()&flagNoModel != 0
	m.node.setFlag(flagNoModel, none)
	if had && !none && m.node.flags.Load() == 0 && m.node.Health.State() == health.Healthy {
		f.o.Logger.Info("node takes requests", "node", m.node.ID, "was", noModel)
	}
}

// wrong says what the configuration of a static node gets wrong about its engine; "": nothing.
func (m *member) wrong(d discovery, info *Info) string {
	b := &m.backend
	if d.asked && len(info.Models) == 0 {
		return d.noModels()
	}
	if b.DataParallel > 0 && d.ranks > 0 && d.ranks != b.DataParallel {
		return fmt.Sprintf("data_parallel_size is %d, but the engine's metrics have %d ranks; leave the setting out, "+
			"or mend it", b.DataParallel, d.ranks)
	}
	if err := cluster.CheckConnector(d.engine, b.Connector); err != nil {
		return "connector: " + err.Error()
	}
	if info.Role == cluster.RolePrefill && cluster.NeedsBootstrap(info.Hands(info.Role)) && info.Bootstrap == "" {
		return noBootstrap
	}
	return ""
}

// noBootstrap is the problem of a prefill node behind a socket.
const noBootstrap = "bootstrap: the url is a socket, and the engine that decodes must reach the bootstrap server of " +
	"this one over the network; give host:port"

// staticInfo merges the configuration with the engine's description of itself. at is the node's
// address.
func staticInfo(b Backend, at relay.Target, d discovery) *Info {
	role, _ := cluster.ParseRole(b.Role) // checked by prepare
	info := &Info{
		Address: b.URL, Role: role, Engine: d.engine, MaxConcurrent: int32(b.MaxConcurrent),
		EngineSlots: d.engineSlots, BlockTokens: d.blockTokens,
		Models: d.models, Upstream: d.models, Adapters: d.adapters, KVAddress: b.KV,
		Labels: b.Labels, Experts: b.Experts, EngineVersion: d.version, MaxBatchedTokens: b.MaxBatchedTokens,
		DataParallel: cmp.Or(b.DataParallel, d.ranks), Connector: b.Connector,
	}
	info.setBootstrap(b.Bootstrap, at.Network, at.Addr)
	if info.OnlyModel = b.Model; b.Model != "" {
		info.Adapters = slices.DeleteFunc(slices.Clone(d.adapters), func(a lora.Adapter) bool {
			return a.Name != b.Model
		})
		upstream := b.Model
		if len(d.models) > 0 && !slices.Contains(d.models, b.Model) {
			upstream = d.models[0]
		}
		info.Models, info.Upstream = []string{b.Model}, []string{upstream}
	}
	return info
}

// sameInfo compares all fields of two Infos but the bases, which follow from the others.
func sameInfo(a, b *Info) bool {
	x, y := *a, *b
	x.bases, y.bases = nil, nil
	return reflect.DeepEqual(&x, &y)
}

// resolveLoop looks up the backends' DNS names. resolveLoop looks names up when the list changes
// and every ResolveInterval.
func (f *Fleet) resolveLoop(ctx context.Context) {
	var names []string
	tick := time.NewTicker(f.o.ResolveInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case names = <-f.kickDNS:
		case <-tick.C:
		}
		for _, name := range names {
			f.resolve(ctx, name)
		}
	}
}

// resolve looks up a name and tells the fleet's goroutine its addresses. A failed look-up keeps the
// present nodes.
func (f *Fleet) resolve(ctx context.Context, name string) {
	lookup, cancel := context.WithTimeout(ctx, f.o.ProbeTimeout)
	defer cancel()
	found, err := f.o.Resolver.LookupNetIP(lookup, "ip", name)
	addresses := usable(found)
	f.send(ctx, func(f *Fleet) {
		switch {
		case !slices.Contains(f.static.names(), name):
			return // a new list has come meanwhile
		case err != nil:
			f.problem(ofName, name, f.static.urls(name)+lookupProblem(err))
			return
		case len(addresses) == 0:
			f.problem(ofName, name, f.static.urls(name)+"the name has no address")
			return
		}
		f.solved(ofName, name)
		if !slices.Equal(addresses, f.static.resolved[name]) {
			if f.static.resolved == nil {
				f.static.resolved = map[string][]netip.Addr{}
			}
			f.static.resolved[name] = addresses
			f.syncStatic()
		}
	})
}

// lookupProblem gives equal problems equal words. Resolvers put changing port numbers into their
// errors.
func lookupProblem(err error) string {
	switch dns, ok := errors.AsType[*net.DNSError](err); {
	case ok && dns.IsNotFound:
		return "the name does not resolve: no such host; mend the URL, or add the name to DNS or /etc/hosts"
	case ok && dns.IsTimeout, errors.Is(err, context.DeadlineExceeded):
		return "the name does not resolve: the name server does not answer in time"
	}
	return "the name does not resolve: " + err.Error()
}

// usable sorts a name's addresses. usable keeps only IPv4 when the name has both kinds, because
// both lead to one server.
func usable(found []netip.Addr) []netip.Addr {
	var v4, v6 []netip.Addr
	for _, ip := range found {
		if ip = ip.Unmap(); ip.Is4() {
			v4 = append(v4, ip)
		} else {
			v6 = append(v6, ip)
		}
	}
	if len(v4) == 0 {
		v4 = v6
	}
	slices.SortFunc(v4, netip.Addr.Compare)
	v4 = slices.Compact(v4)
	return v4[:min(len(v4), maxAddressesOf)]
}
