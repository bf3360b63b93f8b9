package cluster

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// PurgesKey is the key with the list of all purges of the fleet's caches.
const PurgesKey = Root + "kv/purges"

// Purges is the fleet's list of purges in etcd.
type Purges struct {
	Value []byte // nil: there is no list
	Rev   int64  // revision, for ReplacePurges
}

// Purges reads the list.
func (c *Client) Purges(ctx context.Context) (Purges, error) {
	resp, err := c.get(ctx, PurgesKey)
	if err != nil {
		return Purges{}, err
	}
	if len(resp.Kvs) == 0 {
		return Purges{}, nil
	}
	return Purges{resp.Kvs[0].Value, resp.Kvs[0].ModRevision}, nil
}

// ReplacePurges replaces the list that was read, and returns the caches that are registered in etcd
// at that moment. done is false if somebody else has changed the list since.
func (c *Client) ReplacePurges(ctx context.Context, was Purges, value []byte) (caches []Entry, done bool, err error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	resp, err := c.etcd.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(PurgesKey), "=", was.Rev)).
		Then(clientv3.OpPut(PurgesKey, string(value)), clientv3.OpGet(CachesPrefix, clientv3.WithPrefix())).
		Commit()
	if err != nil {
		return nil, false, fmt.Errorf("etcd put %s: %w", PurgesKey, err)
	}
	if !resp.Succeeded {
		return nil, false, nil
	}
	for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
		caches = append(caches, Entry{string(kv.Key), kv.Value, kv.ModRevision})
	}
	return caches, true, nil
}
