package cluster

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestWhatNobodyClaimsIsTakenBack: a value without a daemon neither ends the daemon whose key it
// is, nor prevents one from starting.
func TestWhatNobodyClaimsIsTakenBack(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := startEtcd(t).client()
	others, err := c.etcd.Grant(ctx, 3600)
	must(t, err)
	key := NodeKey("n1")
	var log bytes.Buffer
	var reclaimed atomic.Int64
	r := newAgent("n1", "http://10.0.0.1:1").registrar(c, "")
	r.reg.Logger, r.reg.Reclaimed = slog.New(slog.NewTextHandler(&log, nil)), func() { reclaimed.Add(1) }
	for i, put := range []func() error{ // the first one comes before the start
		func() error { return c.put(ctx, key, []byte("garbage")) },
		func() error { return c.put(ctx, key, []byte("garbage")) },
		func() error { return c.put(ctx, key, nil) },
		func() error { return c.put(ctx, key, []byte("{}")) },
		func() error { // as if restored from a backup
			return c.put(ctx, key, []byte(
				`{"node_id":"n1","instance":"old","address":"http://10.0.0.2:2","models":[]}`))
		},
		func() error {
			_, err := c.etcd.Put(ctx, key, `{"garbage`, clientv3.WithLease(others.ID))
			return err
		},
	} {
		must(t, put())
		log.Reset()
		must(t, r.beat(ctx))
		list, err := c.Nodes(ctx)
		must(t, err)
		if len(list) != 1 || list[0].Err != nil || list[0].Health.Instance != r.reg.Instance {
			t.Errorf("%d: %+v", i, list)
		}
		if _, leased, err := c.LeaseLeft(ctx, list[0]); !leased || err != nil {
			t.Errorf("%d: it has no lease, %v", i, err)
		}
		if n := reclaimed.Load(); n != int64(i+1) || strings.Count(log.String(), "level=ERROR") != 1 {
			t.Errorf("%d: counted %d, said %s", i, n, log.String())
		}
	}
	r.leave(ctx)
}

// TestWhoHoldsAKey: a live daemon owns its value even if members of another version cannot be
// parsed.
func TestWhoHoldsAKey(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]holder{
		`{"instance":"i","address":"http://a:1"}`:              {instance: "i", address: "http://a:1"},
		`{"instance":"i","address":"http://a:1","models":"m"}`: {instance: "i", address: "http://a:1"},
		`{"address":"http://a:1"}`:                             {address: "http://a:1"},
	} {
		if got := holderOf(NodeKey("n"), []byte(value), 7); got != want {
			t.Errorf("%s: %+v", value, got)
		}
		if got := holderOf(NodeKey("n"), []byte(value), clientv3.NoLease); got.nobody == "" {
			t.Errorf("%s without a lease: %+v", value, got)
		}
	}
	if got := holderOf(CacheKey("c"), []byte(`{"instance":"i","quic":"a:1"}`), 7); got != (holder{instance: "i",
		address: "a:1"}) {
		t.Errorf("%+v", got)
	}
	if got := holderOf(CacheKey("c"), []byte(`garbage`), 7); got.nobody == "" {
		t.Errorf("%+v", got)
	}
}
