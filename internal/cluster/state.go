package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Cordon is the value of a cordon key. The key's presence keeps new requests away from the node.
// Drain also asks the agent to report itself drained after its last request has ended.
type Cordon struct {
	Reason string `json:"reason,omitempty"`
	Drain  bool   `json:"drain,omitempty"`
	Stamp  int64  `json:"stamp,omitempty"` // Unix milliseconds
	// Open means that the node is not cordoned, and that the key will be removed.
	Open bool `json:"open,omitempty"`
}

// ParseCordon parses the value of a cordon key. An invalid value is a plain cordon, because the
// key's presence alone cordons.
func ParseCordon(value []byte) Cordon {
	var c Cordon
	if err := json.Unmarshal(value, &c); err != nil {
		return Cordon{}
	}
	return c
}

// reasonShown is how many bytes of a reason String returns.
const reasonShown = 200

// String returns the state of a node under the cordon with the reason: "cordoned: new driver".
func (c Cordon) String() string {
	state := "cordoned"
	if c.Drain {
		state = "draining"
	}
	reason := strings.Join(strings.FieldsFunc(c.Reason, func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	switch {
	case reason == "":
		return state
	case len(reason) > reasonShown:
		reason = strings.ToValidUTF8(reason[:reasonShown], "") + "…"
	}
	return state + ": " + reason
}

// PutCordon cordons a node, or drains it when c.Drain is set. The node need not exist.
func (c *Client) PutCordon(ctx context.Context, id string, cordon Cordon) error {
	if err := CheckNodeID(id); err != nil {
		return err
	}
	cordon.Stamp = cmp.Or(cordon.Stamp, time.Now().UnixMilli())
	value, _ := json.Marshal(cordon) // a Cordon can always be written
	return c.put(ctx, CordonKey(id), value)
}

// Uncordon lets a node take requests again, and returns whether it was cordoned in etcd. Uncordon
// writes an open value before it removes the key. So routers also hear it if etcd has lost the
// cordon that they remember, since the removal of a missing key causes no event.
func (c *Client) Uncordon(ctx context.Context, id string) (was bool, err error) {
	if err := CheckNodeID(id); err != nil {
		return false, err
	}
	value, _ := json.Marshal(Cordon{Open: true, Stamp: time.Now().UnixMilli()})
	asked, cancel := c.bounded(ctx)
	defer cancel()
	old, err := c.etcd.Put(asked, CordonKey(id), string(value), clientv3.WithPrevKV())
	if err != nil {
		return false, fmt.Errorf("etcd put %s: %w", CordonKey(id), err)
	}
	_, err = c.remove(ctx, CordonKey(id))
	return old.PrevKv != nil && !ParseCordon(old.PrevKv.Value).Open, err
}

// Cordons lists the cordoned nodes by id.
func (c *Client) Cordons(ctx context.Context) (map[string]Cordon, error) {
	resp, err := c.get(ctx, CordonPrefix, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	cordons := make(map[string]Cordon, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		if cordon := ParseCordon(kv.Value); !cordon.Open {
			cordons[strings.TrimPrefix(string(kv.Key), CordonPrefix)] = cordon
		}
	}
	return cordons, nil
}

// Caches lists the ids of the registered caches.
func (c *Client) Caches(ctx context.Context) (ids []string, err error) {
	resp, err := c.get(ctx, CachesPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	for _, kv := range resp.Kvs {
		ids = append(ids, CacheOf(string(kv.Key)))
	}
	return ids, nil
}

// Policy returns the stored policy document, nil if there is none.
func (c *Client) Policy(ctx context.Context) ([]byte, error) {
	resp, err := c.get(ctx, PolicyKey)
	if err != nil || len(resp.Kvs) == 0 {
		return nil, err
	}
	return resp.Kvs[0].Value, nil
}

// PutPolicy stores a policy document unchanged. The caller must have validated doc.
func (c *Client) PutPolicy(ctx context.Context, doc []byte) error { return c.put(ctx, PolicyKey, doc) }

// RemovePolicy removes the policy, so that routers use the default, and returns whether there was
// one. RemovePolicy writes an empty document before it removes the key. So routers also hear it if
// etcd has lost the policy that they remember, since the removal of a missing key causes no event.
func (c *Client) RemovePolicy(ctx context.Context) (was bool, err error) {
	asked, cancel := c.bounded(ctx)
	defer cancel()
	old, err := c.etcd.Put(asked, PolicyKey, "{}", clientv3.WithPrevKV())
	if err != nil {
		return false, fmt.Errorf("etcd put %s: %w", PolicyKey, err)
	}
	_, err = c.remove(ctx, PolicyKey)
	return old.PrevKv != nil, err
}

// Node is one registered node. Health is nil if its value cannot be used, and Err is the reason.
// With a Health, Err lists the parts of the value that are left out.
type Node struct {
	ID     string
	Health *NodeHealth
	Err    error

	lease clientv3.LeaseID
}

// Nodes lists the registered nodes in order of their ids.
func (c *Client) Nodes(ctx context.Context) ([]Node, error) {
	resp, err := c.get(ctx, NodesPrefix, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByKey,
		clientv3.SortAscend))
	if err != nil {
		return nil, err
	}
	nodes := make([]Node, 0, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		id := strings.TrimPrefix(string(kv.Key), NodesPrefix)
		health, err := ParseNodeHealth(id, kv.Value)
		if err == nil {
			err = health.LeftOut
		}
		nodes = append(nodes, Node{ID: id, Health: health, Err: err, lease: clientv3.LeaseID(kv.Lease)})
	}
	return nodes, nil
}

// LeaseLeft returns how long the node stays registered without a further heartbeat, in whole
// seconds of etcd's clock; zero if that is over. ok is false for a node without a lease, which
// stays for ever.
func (c *Client) LeaseLeft(ctx context.Context, n Node) (left time.Duration, ok bool, err error) {
	if n.lease == clientv3.NoLease {
		return 0, false, nil
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	resp, err := c.etcd.TimeToLive(ctx, n.lease)
	if err != nil {
		return 0, false, fmt.Errorf("etcd lease of node %s: %w", n.ID, err)
	}
	return time.Duration(max(resp.TTL, 0)) * time.Second, true, nil
}
