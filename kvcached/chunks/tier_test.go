package chunks

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kv/vllmtier"
)

const bucket = "key1;s3.kvcache;"

// tierKey is the key of chunk n of chunkOf in vLLM's object tier.
func tierKey(config string, n int) []byte {
	hash := fmt.Sprintf("%048x%016x", 7, 100+n)
	return (&vllmtier.Key{Base: "_m_" + config, Hash: hash}).Append(nil)
}

func tierChange(key, attr []byte, tier residency.Tiers, present bool) *Change {
	return &Change{Addr: block.OfKey(block.IDOf(bucket), key), Namespace: bucket, Key: key, Attr: attr, Tier: tier,
		Present: present}
}

// TestTier counts an object of vLLM's tier once its engine has shown which objects are its and an
// agent has told what the object stands for, in either order with the object. An object of another
// configuration of the same model with the same hash does not count.
func TestTier(t *testing.T) {
	const one, other = "0123456789ab", "ba9876543210"
	x := index{}
	table := New(Options{Index: x})
	s := alias.Source{Keys: bucket, Engine: vllmtier.Client("gpu1"), Scheme: alias.VLLMTier, World: 1, Served: "m",
		Revision: "-"}
	table.Apply(tierChange(tierKey(one, 0), nil, residency.Host, true))
	table.Apply(tierChange(tierKey(other, 0), nil, residency.Host, true))
	table.Asked("cognitora", bucket, tierKey(other, 0))
	table.Asked(vllmtier.Client("gpu1"), "key1;s3.another;", tierKey(other, 0))
	table.Asked(vllmtier.Client("gpu1"), bucket, []byte("__nixl_probe__/connectivity_test"))
	if n, err := table.Tell(&s, []alias.Chunk{chunkOf(0, 0)}); n != 0 || !errors.Is(err, ErrUnseen) {
		t.Fatal(n, err)
	}
	table.Asked(vllmtier.Client("gpu1"), bucket, tierKey(one, 5))
	if n, err := table.Tell(&s, []alias.Chunk{chunkOf(0, 0), chunkOf(1, 0)}); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	table.Apply(tierChange(tierKey(one, 1), nil, residency.Host, true))
	if st := table.Stats(); st.Counted != 2 || st.Untold != 1 || len(x) != 2 || len(table.unnoted) != 1 {
		t.Fatalf("%+v %v", st, x)
	}
	notes := map[block.Addr][]byte{}
	for _, a := range table.take() {
		notes[a] = table.note(&a, nil)
	}
	restarted := index{}
	after := New(Options{Index: restarted})
	for n := range 2 {
		key := tierKey(one, n)
		after.Apply(tierChange(key, notes[block.OfKey(block.IDOf(bucket), key)], residency.Disk, true))
		table.Apply(tierChange(key, nil, residency.Host, false))
	}
	if st := after.Stats(); st.Counted != 2 || len(restarted) != 2 {
		t.Errorf("after a restart: %+v %v", st, restarted)
	}
	if st := table.Stats(); st.Counted != 0 || st.Idle != 2 || len(x) != 0 {
		t.Errorf("without the objects: %+v %v", st, x)
	}
	table.Apply(tierChange(tierKey(other, 0), nil, residency.Host, false))
	if st := table.Stats(); st.Untold != 0 || len(table.unnoted) != 0 {
		t.Errorf("%+v, %d wait", st, len(table.unnoted))
	}
	table.Apply(tierChange([]byte("_m_0123456789ab_r0/abc/de_g1/abcdef0123456789.bin"), nil, residency.Host, true))
	if st := table.Stats(); st.Forms != 1 || st.Parts != 0 {
		t.Errorf("an object of another group: %+v", st)
	}
}

// TestEnginesAreBounded keeps the engines that ask, of a bounded number.
func TestEnginesAreBounded(t *testing.T) {
	table := New(Options{Index: index{}})
	for i := range 2 * maxOrigins {
		table.Asked(vllmtier.Client(fmt.Sprint(i)), bucket, tierKey("0123456789ab", 0))
	}
	last := engine{bucket, vllmtier.Client(fmt.Sprint(2*maxOrigins - 1))}
	if n := len(table.engines); n != maxOrigins || table.baseOf(last) == "" {
		t.Errorf("%d engines", n)
	}
}

// TestRefusedTellingKeepsTheCarrier tells of a stored object while the table has no room for a
// source, and again when it has. The note is written then.
func TestRefusedTellingKeepsTheCarrier(t *testing.T) {
	table := New(Options{Index: index{}})
	s := alias.Source{Keys: bucket, Engine: vllmtier.Client("gpu1"), Scheme: alias.VLLMTier, World: 1, Served: "m",
		Revision: "-"}
	table.Asked(s.Engine, bucket, tierKey("0123456789ab", 0))
	table.Apply(tierChange(tierKey("0123456789ab", 0), nil, residency.Host, true))
	for n := range maxOrigins {
		table.origins.hold(origin{tokens: n})
	}
	for want := range 2 {
		if n, err := table.Tell(&s, []alias.Chunk{chunkOf(0, 0)}); n != want || err != nil {
			t.Fatal(n, err)
		}
		if notes := table.take(); len(notes) != want {
			t.Errorf("%d notes wait, want %d", len(notes), want)
		}
		table.origins.drop(1)
	}
}

// TestUntoldObjectsAreBounded stores more objects than wait to be told.
func TestUntoldObjectsAreBounded(t *testing.T) {
	table := New(Options{Index: index{}})
	for n := range maxUnnoted + 10 {
		table.Apply(tierChange(tierKey("0123456789ab", n), nil, residency.Host, true))
	}
	if st := table.Stats(); len(table.unnoted) != maxUnnoted || st.Untold != maxUnnoted+10 {
		t.Errorf("%d wait, %+v", len(table.unnoted), st)
	}
}
