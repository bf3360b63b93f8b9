package router

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/fleet"
)

// cacheSetting says which setting names a cache daemon of staticCaches or Router.caches.
func (r *Router) cacheSetting(of string) string {
	var all []string
	for _, b := range *r.backends.Load() {
		if b.KV == of {
			all = append(all, b.NodeID())
		}
	}
	if len(all) == 0 {
		return of + ": kv_events" // of an agent, see Router.caches
	}
	return "kv of backend " + strings.Join(all, ", ")
}

// cacheProblems says what keeps blocks of cache daemons from counting: streams that cannot be read,
// and the mistakes of cacheMistakes.
func (r *Router) cacheProblems(snap *fleet.Snapshot) (all []fleet.Problem) {
	for _, t := range r.holdings.Troubles() {
		why := "its residency stream cannot be read, so its blocks do not count: " + t.Why
		if t.Setting != "" {
			why = t.Setting + ": " + why + "; give the daemon's gRPC socket or address (kvcached.sock, grpc.listen)"
		}
		all = append(all, fleet.Problem{Subject: "cache " + t.Cache, Reason: why})
	}
	return append(all, r.cacheMistakes(snap)...)
}

// cacheMistakes says which nodes name a cache daemon in vain, or so that blocks count that their
// engines cannot use.
func (r *Router) cacheMistakes(snap *fleet.Snapshot) (all []fleet.Problem) {
	for _, n := range snap.Nodes {
		info := n.Info()
		say := func(format string, values ...any) {
			all = append(all, fleet.Problem{Subject: n.ID, Reason: fmt.Sprintf(format, values...)})
		}
		if info.KVAddress == "" {
			continue
		}
		if !r.holdings.Knows(info.KVAddress) {
			say("its kv_address is in vain: no cache announces %s; %s", info.KVAddress,
				announced(r.holdings.Addresses()))
			continue
		}
		vain := func(model string) bool { return !tokenises(snap, model) && r.holdings.Has(info.KVAddress, model) }
		if at := slices.IndexFunc(info.Models, vain); at >= 0 {
			say("the blocks of its cache count only for prompts given as token ids, because model %s has no tokenizer: "+
				"add [[model]] with name and tokenizer (or cgn-ctl model set), tokenizer \"learn\", or tokenizer \"none\" "+
				"if that is intended", info.Models[at])
		}
		if n.Source != fleet.Static {
			continue
		}
		if strangers := r.strangers(snap, n.ID, info.KVAddress); len(strangers) > 0 {
			say("readers at its cache that are none of this router's nodes: %s; if one is this node's engine, give the "+
				"backend its name (id=%s), because blocks that it cannot read count until then",
				short(strangers), strangers[0])
		}
	}
	return all
}

// strangers returns the readers of a node's cache that are no nodes, unless the node is a reader.
func (r *Router) strangers(snap *fleet.Snapshot, node, kvAddress string) []string {
	readers := r.holdings.Readers(kvAddress)
	if slices.Contains(readers, cluster.NodeOf(node)) {
		return nil
	}
	return slices.DeleteFunc(readers, func(id string) bool { return snap.Node(id) != nil })
}

// announced says at which addresses daemons are known.
func announced(addresses []string) string {
	if len(addresses) == 0 {
		return "none is known"
	}
	return "these do: " + short(addresses)
}

// short joins the first names of a list.
func short(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// These bound the log lines about mistakes with caches: the time between two looks, which is also
// how long a mistake lasts before it is logged, and the mistakes that are remembered.
const (
	mistakesEvery = 5 * time.Second
	mistakesMost  = 8192
)

// cacheWarnings are the mistakes with caches that the log has. One goroutine uses them.
type cacheWarnings struct {
	looked time.Time
	last   map[string]bool // mistakes at the last look, by subject and kind
	told   map[string]bool // logged ones
}

// look logs mistakes that have lasted since the last look, each once. Daemons and readers may come
// after the nodes.
func (w *cacheWarnings) look(now time.Time, mistakes func() []fleet.Problem, log *slog.Logger) {
	if now.Sub(w.looked) < mistakesEvery {
		return
	}
	w.looked = now
	last := w.last
	w.last = map[string]bool{}
	if w.told == nil || len(w.told) > mistakesMost {
		w.told = map[string]bool{}
	}
	for _, p := range mistakes() {
		kind, _, _ := strings.Cut(p.Reason, ":") // what follows changes with the fleet
		key := p.Subject + " " + kind
		w.last[key] = true
		if last[key] && !w.told[key] {
			w.told[key] = true
			log.Warn("a node's cache does not count as configured", "node", p.Subject, "why", p.Reason)
		}
	}
}
