// Package cluster is the fleet's shared state in etcd. The package defines the keys and the form of
// their values. The package follows keys over outages, and keeps an agent's node registered.
package cluster

import (
	"fmt"
	"strconv"
	"strings"
)

// Prefixes of the keys, all under /cognitora. A node id or a model name follows.
const (
	Root         = "/cognitora/"
	NodesPrefix  = Root + "nodes/"
	CordonPrefix = Root + "cordon/"
	ModelsPrefix = Root + "models/"
	CachesPrefix = Root + "caches/"
	KeysPrefix   = Root + "keys/" // of clients, by their ids
	PolicyKey    = Root + "routing/policy"
)

// NodeKey returns the key of a node's NodeHealth. The key lives as long as the agent's lease.
func NodeKey(id string) string { return NodesPrefix + id }

// CordonKey returns the key whose presence keeps new requests away from a node, unless its value is
// open.
func CordonKey(id string) string { return CordonPrefix + id }

// ModelKey returns the key of a model's aliases, tokenizer and role pools. A model name may contain
// slashes.
func ModelKey(name string) string { return ModelsPrefix + name }

// CacheKey returns the key of a host's CacheHealth. The key lives as long as the daemon's lease.
func CacheKey(id string) string { return CachesPrefix + id }

// CacheOf returns the id in a CacheKey.
func CacheOf(key string) string { return strings.TrimPrefix(key, CachesPrefix) }

// maxNodeID is the longest node id, in bytes.
const maxNodeID = 128

// CheckNodeID returns an error unless id is a valid node id: letters, digits and . _ : - up to 128
// bytes.
func CheckNodeID(id string) error { return checkID("node id", id) }

// CheckCacheID returns an error unless id is a valid cache id. Cache ids follow the rules of node
// ids.
func CheckCacheID(id string) error { return checkID("cache id", id) }

// checkID returns an error unless id is valid. The error calls the id by the word in what.
func checkID(what, id string) error {
	if id == "" {
		return fmt.Errorf("%s is empty; give one, for example the host's name", what)
	}
	if len(id) > maxNodeID {
		return fmt.Errorf("%s %.20q… has %d bytes; at most %d are allowed", what, id, len(id), maxNodeID)
	}
	if i := strings.IndexFunc(id, notInNodeID); i >= 0 {
		return fmt.Errorf("%s %q holds %q; use letters, digits and . _ : - only", what, id, id[i])
	}
	return nil
}

func notInNodeID(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._:-", r)
}

// RankName returns the name of one of several data-parallel ranks of a node. Agents report the
// blocks of the rank under it. No node has such an id.
func RankName(node string, rank int) string { return node + "/" + strconv.Itoa(rank) }

// NodeOf returns the node's id in the name of a node or of a rank.
func NodeOf(name string) string {
	id, _, _ := strings.Cut(name, "/")
	return id
}
