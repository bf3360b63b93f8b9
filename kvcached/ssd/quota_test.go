package ssd

import (
	"errors"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

// tenants limits each tenant except the first to limit bytes.
func tenants(limit int64) func(string) (string, int64) {
	return func(namespace string) (string, int64) {
		n, _ := block.ParseNamespace(namespace)
		if n.Tenant == "" {
			return "", 0
		}
		return n.Tenant, limit
	}
}

func ofTenant(name string, i int) Record {
	n := block.Namespace{Space: "resp.0", Tenant: name}
	return Record{Addr: block.OfKey(n.ID(), []byte{byte(i), byte(i >> 8)}), Namespace: n.String()}
}

// usedBy returns an account's bytes, and those that are being written.
func usedBy(t *Tier, name string) (used, pending int64) {
	t.usage.mu.Lock()
	defer t.usage.mu.Unlock()
	a := t.usage.accounts[name]
	return a.used, a.pending
}

// TestQuota: an account stays within its limit, also over a restart, and has room again after
// deletions.
func TestQuota(t *testing.T) {
	const each, most = 3 * page, 10
	o := small(t.TempDir())
	o.Quota = tenants(most*each + page)
	tier := open(t, o)
	payload := make([]byte, 2*page)
	for i := range most {
		if err := tier.Write(ctx, ofTenant("a", i), payload, i%2 == 0); err != nil {
			t.Fatal(i, err)
		}
	}
	full := func(when string) {
		t.Helper()
		for _, durable := range []bool{true, false} {
			if err := tier.Write(ctx, ofTenant("a", most), payload, durable); !errors.Is(err, ErrQuota) ||
				!strings.Contains(err.Error(), `"a"`) {
				t.Error(when, err)
			}
		}
		if used, pending := usedBy(tier, "a"); used != most*each || pending != 0 {
			t.Errorf("%s: %d bytes of %d, %d are being written", when, used, most*each, pending)
		}
	}
	full("at the limit")
	if n := tier.Stats().OverQuota; n != 2 {
		t.Error(n, "refused")
	}
	if err := tier.Write(ctx, ofTenant("a", 1), payload, true); err != nil {
		t.Error("one in place of another:", err)
	}
	if _, err := tier.SetExpiry(ofTenant("a", 1).Addr, 1<<60); err != nil {
		t.Error(err)
	}
	for _, other := range []string{"b", ""} {
		for i := range 2 * most {
			if err := tier.Write(ctx, ofTenant(other, i), payload, false); (err != nil) != (other == "b" && i >= most) {
				t.Error(other, i, err)
			}
		}
	}
	full("beside others")
	mustClose(t, tier)
	tier = open(t, o)
	<-tier.Ready()
	full("after a restart")
	if n, err := tier.Delete(ctx, ofTenant("a", 3).Addr); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if err := tier.Write(ctx, ofTenant("a", most), payload, true); err != nil {
		t.Error("there is room again:", err)
	}
	mustClose(t, tier)
}

// TestQuotaOfWhatIsReclaimed: records that reclaim drops do not count any more, and records that it
// copies count once.
func TestQuotaOfWhatIsReclaimed(t *testing.T) {
	o := small(t.TempDir())
	o.Quota = tenants(o.Cap)
	tier := open(t, o)
	payload := make([]byte, 100_000)
	for i := range 2 * int(o.Cap) / len(payload) {
		if err := tier.Write(ctx, ofTenant("a", i), payload, false); err != nil {
			t.Fatal(i, err)
		}
		if i%8 == 0 {
			tier.Touch(ofTenant("a", i).Addr)
		}
	}
	s := tier.Stats()
	if s.Evicted == 0 || s.Moved == 0 {
		t.Errorf("%d evicted, %d moved: nothing was reclaimed", s.Evicted, s.Moved)
	}
	mustClose(t, tier) // reclaim has ended
	live := int64(0)
	for _, seg := range tier.segs.all() {
		live += seg.live.Load()
	}
	if used, pending := usedBy(tier, "a"); used != live || pending != 0 {
		t.Errorf("%d bytes count, %d live", used, live)
	}
	if u := tier.Namespaces(); len(u) != 1 || u[0].Bytes != live {
		t.Errorf("%+v, %d live", u, live)
	}
}
