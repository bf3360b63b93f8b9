package cluster

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// APIKeys returns the records of all API keys, sorted by id.
func (c *Client) APIKeys(ctx context.Context) (all []Entry, err error) {
	resp, err := c.get(ctx, KeysPrefix, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByKey,
		clientv3.SortAscend))
	if err != nil {
		return nil, err
	}
	for _, kv := range resp.Kvs {
		all = append(all, Entry{Key: string(kv.Key), Value: kv.Value, Rev: kv.ModRevision})
	}
	return all, nil
}

// EditAPIKey changes the record of an API key by edit, which gets nil if there is none, and may be
// called several times.
func (c *Client) EditAPIKey(ctx context.Context, id string, edit func(was []byte) ([]byte, error)) error {
	key := KeysPrefix + id
	for range editTries {
		resp, err := c.get(ctx, key)
		if err != nil {
			return err
		}
		var was []byte
		rev := int64(0)
		if len(resp.Kvs) > 0 {
			was, rev = resp.Kvs[0].Value, resp.Kvs[0].ModRevision
		}
		value, err := edit(was)
		if err != nil {
			return err
		}
		if done, err := c.replace(ctx, key, rev, value); err != nil || done {
			return err
		}
	}
	return fmt.Errorf("API key %s: others change it all the time; try again", id)
}
