package router

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/residency"
)

// cacheSetting says which setting names a cache daemon of staticCaches or knowledge.caches.
func (k *knowledge) cacheSetting(of string) string {
	var all []string
	for _, b := range *k.backends.Load() {
		if b.KV == of {
			all = append(all, b.NodeID())
		}
	}
	if len(all) == 0 {
		return of + ": kv_events" // of an agent, see knowledge.caches
	}
	return "kv of backend " + strings.Join(all, ", ")
}

// cacheProblems says what keeps blocks of cache daemons from counting: streams that cannot be read,
// and the mistakes of cacheMistakes.
func (k *knowledge) cacheProblems(snap *fleet.Snapshot) (all []fleet.Problem) {
	for _, t := range k.holdings.Troubles() {
		why := "its residency stream cannot be read, so its blocks do not count: " + t.Why
		if t.Setting != "" && !t.Heard {
			why = t.Setting + ": " + why + "; give the daemon's gRPC socket or address (kvcached.sock, grpc.listen)"
		}
		all = append(all, fleet.Problem{Subject: "cache " + t.Cache, Reason: why})
	}
	return append(all, k.cacheMistakes(snap)...)
}

// cacheMistakes says which blocks of nodes and their caches count only for prompts given as token
// ids, or have no place in the index. It also says which nodes name a cache daemon in vain, or so
// that blocks count that their engines cannot use.
func (k *knowledge) cacheMistakes(snap *fleet.Snapshot) (all []fleet.Problem) {
	for _, of := range k.holdings.Roomless() {
		if len(of.Engines) > 0 {
			all = append(all, fleet.Problem{Subject: "cache " + of.Cache,
				Reason: "the blocks of engines are predicted, because " + noRoom + ": " + short(of.Engines)})
		}
		if of.Blocks {
			all = append(all, fleet.Problem{Subject: "cache " + of.Cache,
				Reason: "some of its blocks do not count, because " + noRoom})
		}
	}
	for _, n := range snap.Nodes {
		info := n.Info()
		say := func(format string, values ...any) {
			all = append(all, fleet.Problem{Subject: n.ID, Reason: fmt.Sprintf(format, values...)})
		}
		vain := func(model string) bool { return !tokenises(snap, model) && k.holdings.Has(info.KVAddress, model) }
		model := k.untokenised(snap, n)
		if at := slices.IndexFunc(info.Models, vain); model == "" && at >= 0 {
			model = info.Models[at]
		}
		if model != "" {
			say("its cached blocks count only for prompts given as token ids, because model %s has no tokenizer: "+
				"add [[model]] with name and tokenizer (or cgn-ctl model set), tokenizer \"learn\", or tokenizer \"none\" "+
				"if that is intended", model)
		}
		if info.KVAddress == "" {
			continue
		}
		if !k.holdings.Knows(info.KVAddress) {
			say("its kv_address is in vain: no cache announces %s; %s", info.KVAddress,
				announced(k.holdings.Addresses()))
			continue
		}
		contested := func(model string) bool { return k.holdings.Contested(info.KVAddress, n.ID, model) }
		if at := slices.IndexFunc(info.Models, contested); at >= 0 {
			say("its cache's blocks of model %s do not count: they are in several namespaces, and its engine has not said "+
				"which one it reads; cgn-ctl kv stats on its host lists them", info.Models[at])
		}
		if n.Source != fleet.Static {
			continue
		}
		if strangers := k.strangers(snap, n.ID, info.KVAddress); len(strangers) > 0 {
			say("readers at its cache that are none of this router's nodes: %s; if one is this node's engine, give the "+
				"backend its name (id=%s), because blocks that it cannot read count until then",
				short(strangers), strangers[0])
		}
	}
	return all
}

// noRoom says why blocks have no place in the index.
var noRoom = fmt.Sprintf("all %d places of the router's index are taken", residency.MaxNodes)

// untokenised returns the model of a node whose engine reports its blocks, if the router cannot
// make the tokens of any of the node's models from text; "": it can, or the engine reports none.
func (k *knowledge) untokenised(snap *fleet.Snapshot, n *fleet.Node) (model string) {
	models := n.Info().Models
	reports := func(rank *fleet.Rank) bool { return k.holdings.Reports(rank.Name) }
	known := func(model string) bool { return tokenises(snap, model) }
	if len(models) == 0 || slices.ContainsFunc(models, known) || !slices.ContainsFunc(n.Ranks(), reports) {
		return ""
	}
	return models[0]
}

// strangers returns the readers of a node's cache that are no nodes, unless the node is a reader.
func (k *knowledge) strangers(snap *fleet.Snapshot, node, kvAddress string) []string {
	readers := k.holdings.Readers(kvAddress)
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
