package ssd

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/cognitora/dataplane/kv/block"
)

func named(i int) Record {
	text := block.Namespace{Space: fmt.Sprint("resp.", i)}.String()
	return Record{Addr: block.OfKey(block.IDOf(text), []byte("key")), Namespace: text}
}

func (t *Tier) nameCount() int {
	t.names.mu.RLock()
	defer t.names.mu.RUnlock()
	return len(t.names.text)
}

// TestNamesForgotten: after a purge, and after a start, a namespace without blocks does not count
// for the limit.
func TestNamesForgotten(t *testing.T) {
	sim, rows := newSimFS(), vfs.NewMem()
	tier := open(t, simOptions(sim, rows))
	<-tier.Ready()
	const n, kept = 100, 10
	for i := range n {
		if err := tier.Write(ctx, named(i), content(i, 1, 100), false); err != nil {
			t.Fatal(err)
		}
	}
	purge := func(from, to int) {
		t.Helper()
		gone := map[string]bool{}
		for i := from; i < to; i++ {
			gone[named(i).Namespace] = true
		}
		if deleted, err := removeAll(tier, func(text string) bool { return gone[text] }); err != nil ||
			deleted != to-from {
			t.Fatal(deleted, err)
		}
	}
	purge(50, n)
	if got := tier.nameCount(); got != 50 {
		t.Errorf("%d namespaces of 50 after a purge", got)
	}
	for i := kept; i < 50; i++ {
		if _, err := tier.Delete(ctx, named(i).Addr); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, tier)
	tier = open(t, simOptions(sim, rows))
	<-tier.Ready()
	if got := tier.nameCount(); got != kept {
		t.Errorf("%d namespaces of %d after a start", got, kept)
	}
	for i := range kept {
		if info, err := tier.Read(ctx, named(i).Addr, make([]byte, 100)); err != nil ||
			info.Namespace != named(i).Namespace {
			t.Error(info, err)
		}
	}
	// A running write keeps its namespace.
	r := named(n)
	if err := tier.names.begin(tier.rows, r.Addr.Model, r.Namespace); err != nil {
		t.Fatal(err)
	}
	tier.ForgetNames()
	if tier.names.get(r.Addr.Model) != r.Namespace {
		t.Error("the namespace of a block that is being written is forgotten")
	}
	tier.names.end(r.Addr.Model)
	tier.ForgetNames()
	if tier.nameCount() != kept {
		t.Error("the namespace of what was not written is kept")
	}
	mustClose(t, tier)
	tier = open(t, simOptions(sim, rows))
	if got := tier.nameCount(); got != kept {
		t.Errorf("%d namespaces of %d have rows", got, kept)
	}
	mustClose(t, tier)
}

// TestTenantNames: a tenant cannot use up the namespaces of others. It has its share again when it
// gives some up.
func TestTenantNames(t *testing.T) {
	sim, rows := newSimFS(), vfs.NewMem()
	tier := open(t, simOptions(sim, rows))
	<-tier.Ready()
	tier.names.mu.Lock()
	tier.names.tenants = map[string]int{"": maxTenantNames}
	tier.names.mu.Unlock()
	if err := tier.Write(ctx, named(1), nil, false); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	other := block.Namespace{Space: "resp.1", Tenant: "a"}
	r := Record{Addr: block.OfKey(other.ID(), []byte("key")), Namespace: other.String()}
	if err := tier.Write(ctx, r, nil, false); err != nil {
		t.Error(err)
	}
	mustClose(t, tier)
	tier = open(t, simOptions(sim, rows))
	if err := tier.Write(ctx, named(1), nil, false); err != nil {
		t.Error(err)
	}
	if n := tier.names.tenants; n["a"] != 1 || n[""] != 1 {
		t.Error(n)
	}
	mustClose(t, tier)
}
