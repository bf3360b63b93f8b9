// Package cluster is the fleet's shared state in etcd: which keys there are, what their values look
// like, how to follow them over outages, and how an agent keeps its node registered.
package cluster

import (
	"fmt"
	"strings"
)

// Prefixes of the keys, all under /cognitora. The rest of a key is a node id or a model name.
const (
	Root         = "/cognitora/"
	NodesPrefix  = Root + "nodes/"
	CordonPrefix = Root + "cordon/"
	ModelsPrefix = Root + "models/"
	CachesPrefix = Root + "caches/"
	PolicyKey    = Root + "routing/policy"
)

// NodeKey is the key of a node's NodeHealth; it lives as long as the agent's lease.
func NodeKey(id string) string { return NodesPrefix + id }

// CordonKey is the key whose presence keeps new requests away from a node, unless its value says
// that it is open.
func CordonKey(id string) string { return CordonPrefix + id }

// ModelKey is the key of a model's aliases, tokenizer and role pools. A model name may hold
// slashes.
func ModelKey(name string) string { return ModelsPrefix + name }

// CacheKey is the key of a host's CacheHealth; it lives as long as the daemon's lease.
func CacheKey(id string) string { return CachesPrefix + id }

// CacheOf is the id in a CacheKey.
func CacheOf(key string) string { return strings.TrimPrefix(key, CachesPrefix) }

// maxNodeID bounds a node id, in bytes.
const maxNodeID = 128

// CheckNodeID says whether id can name a node: letters, digits and . _ : - up to 128 bytes.
func CheckNodeID(id string) error { return checkID("node id", id) }

// CheckCacheID says whether id can name a cache; the rules are those of nodes.
func CheckCacheID(id string) error { return checkID("cache id", id) }

// checkID is about an id that people know as what.
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
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		return false
	}
	return !strings.ContainsRune("._:-", r)
}
