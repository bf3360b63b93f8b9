package kv

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/cache"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/router/holdings"
)

// TestWhatCounts: kv stats says of a real daemon's blocks which ones count in routing, and why the
// others do not.
func TestWhatCounts(t *testing.T) {
	_, sock := ctltest.StartCache(t, func(c *kvcached.Config) { c.Daemon.SSD = 0 })
	env := map[string]string{cache.Variable: sock}
	payload := filepath.Join(t.TempDir(), "payload")
	if err := os.WriteFile(payload, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	d := chain("m", 9)
	// put stores the object that ends with block i. Its parent is block from, or none at -1.
	put := func(n block.Namespace, layer uint32, from, i int, names bool) {
		t.Helper()
		text := block.Text(n.String(), block.Addr{Digest: d[i], Layer: layer}) + ":"
		if from >= 0 {
			text += hex.EncodeToString(d[from][:])
		}
		text += ":"
		for at := from + 1; names && at < i; at++ {
			text += hex.EncodeToString(d[at][:8])
		}
		if out, err := ctl(t, env, "kv", "put", text, payload); err != nil {
			t.Fatal(err, out)
		}
	}
	of := func(model string, tokens, tp, rank uint32) block.Namespace {
		return block.Namespace{Model: model, Revision: "r", DType: "bf16", Layout: "l", Tokens: tokens, TP: tp,
			TPRank: rank, PP: 1}
	}
	whole := of("whole", 48, 1, 0)
	put(whole, block.LayerAll, -1, 2, true)
	put(whole, block.LayerAll, 2, 5, true)
	nameless := of("nameless", 48, 1, 0)
	put(nameless, block.LayerAll, -1, 2, false)
	odd := of("odd", 24, 1, 0)
	put(odd, block.LayerAll, -1, 0, false)
	behind := of("behind", 16, 1, 0)
	first := d
	d = chain("other", 9)
	put(behind, block.LayerAll, 3, 4, false)
	d = first
	layers := of("layers", 16, 1, 0)
	for layer := range uint32(3) {
		put(layers, layer, -1, 0, false)
	}
	for rank := range uint32(2) {
		put(of("ranks", 16, 2, rank), block.LayerAll, -1, 0, false)
	}
	put(of("ranks", 16, 2, 0), block.LayerAll, 0, 1, false)
	put(of("ranks", 16, 2, 1), block.LayerAll, 0, 2, false)
	put(of("many", 16, 65, 0), block.LayerAll, -1, 0, false)
	out, err := ctl(t, env, "kv", "stats")
	if err != nil {
		t.Fatal(err)
	}
	out = strings.Join(strings.Fields(out), " ")
	ctltest.Want(t, out, "BLOCKS IN ROUTING FOR NAMESPACE OF RANK 0",
		"6 all "+whole.String(), "0 all "+nameless.String(), "0 all "+odd.String(), "0 all "+behind.String(),
		"1 all "+layers.String(), "1 all "+of("ranks", 16, 2, 0).String(), "0 all "+of("many", 16, 65, 0).String(),
		"1 objects in RAM do not count: their writer gave no names of their blocks, or others than are known ("+
			nameless.String()+")",
		"1 objects in RAM do not count: TOKENS = 24 is no multiple of 16 up to 512 ("+odd.String()+")",
		"1 blocks do not count: a block before them in their prompt is not known ("+behind.String()+")",
		"2 blocks do not count: they are of layers besides the first, which stands for all ("+layers.String()+")",
		"2 blocks do not count: not all 2 ranks have them ("+of("ranks", 16, 2, 0).String()+")",
		"1 blocks do not count: they have more than 64 ranks ("+of("many", 16, 65, 0).String()+")")
	if n := strings.Count(out, "do not count"); n != 6 {
		t.Errorf("%d reasons in\n%s", n, out)
	}
}

// TestUnreadBlocks: kv stats says in what blocks differ from those that engines can read, and that
// there are limits.
func TestUnreadBlocks(t *testing.T) {
	space := func(change func(n *block.Namespace)) string {
		n := block.Namespace{Model: "m", Revision: "1", DType: "bf16", Layout: "l", Tokens: 16, TP: 1, PP: 1}
		change(&n)
		return n.String()
	}
	read := space(func(*block.Namespace) {})
	r := &pb.StatsResponse{
		Counting: []*pb.Counting{{Namespace: read, Counted: 3},
			{Namespace: space(func(n *block.Namespace) { n.Revision = "2" }), Counted: 4},
			{Namespace: space(func(n *block.Namespace) { n.DType, n.Tokens = "fp8", 32 }), Counted: 5},
			{Namespace: space(func(n *block.Namespace) { n.TP = 2 }), Counted: 6}},
		Readers: []*pb.Reader{{Node: "gpu1", Namespaces: []string{read}}, {Node: "gpu2", Namespaces: []string{read}}},
	}
	for range holdings.MaxConfigurations {
		r.Counting = append(r.Counting, &pb.Counting{Namespace: read})
	}
	s := statsReport{Counting: countings(r),
		Values: map[string]int64{"residency_overflow": 7, "residency_reads_refused": 8}}
	var out strings.Builder
	if err := (&cli.App{Out: &out, Output: "table"}).Show(nil, func(t *cli.Table) { s.writeCounting(t) }); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	const nobody = "blocks do not count: no engine that has said what it reads can read them; the nearest differs in "
	ctltest.Want(t, text, "3 gpu1, gpu2 "+read, "4 none that says", "4 "+nobody+"revision", "5 "+nobody+
		"data type, tokens of a block", "6 "+nobody+"ranks", "counts 16 of these 20 namespaces",
		"7 blocks were left out", "8 namespaces that engines read were not noted")
	if strings.Contains(text, "3 "+nobody) {
		t.Error(text)
	}
}

// TestUnsaidBlocks: while no engine says what it reads, kv stats says that blocks of a model with
// several namespaces do not count, and why.
func TestUnsaidBlocks(t *testing.T) {
	space := func(model, revision string) string {
		return block.Namespace{Model: model, Revision: revision, DType: "bf16", Layout: "l", Tokens: 16, TP: 1,
			PP: 1}.String()
	}
	s := statsReport{Counting: countings(&pb.StatsResponse{Counting: []*pb.Counting{
		{Namespace: space("m", "1"), Counted: 3}, {Namespace: space("m", "2"), Counted: 4},
		{Namespace: space("n", "1"), Counted: 5},
	}})}
	var out strings.Builder
	if err := (&cli.App{Out: &out, Output: "table"}).Show(nil, func(t *cli.Table) { s.writeCounting(t) }); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	const why = " blocks do not count: the model has several namespaces, and nobody says which one the engine reads"
	ctltest.Want(t, text, "3 none "+space("m", "1"), "4 none "+space("m", "2"), "5 all "+space("n", "1"), "3"+why,
		"4"+why)
	if strings.Count(text, why) != 2 {
		t.Error(text)
	}
}

// TestSilentModel: nodes that say what they read of one model leave the blocks of another as they
// were: they count for nodes that say nothing.
func TestSilentModel(t *testing.T) {
	space := func(model, revision string) string {
		return block.Namespace{Model: model, Revision: revision, DType: "bf16", Layout: "l", Tokens: 16, TP: 1,
			PP: 1}.String()
	}
	r := &pb.StatsResponse{
		Counting: []*pb.Counting{{Namespace: space("m", "1"), Counted: 3}, {Namespace: space("n", "1"), Counted: 40}},
		Readers:  []*pb.Reader{{Node: "gpu1", Namespaces: []string{space("m", "1")}}},
	}
	print := func() string {
		s := statsReport{Counting: countings(r)}
		var out strings.Builder
		if err := (&cli.App{Out: &out, Output: "table"}).Show(nil, func(t *cli.Table) { s.writeCounting(t) }); err !=
			nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(out.String()), " ")
	}
	if text := print(); !strings.Contains(text, "3 gpu1 "+space("m", "1")) ||
		!strings.Contains(text, "40 all that say nothing "+space("n", "1")) || strings.Contains(text, "do not count") {
		t.Error(text)
	}
	r.Counting = append(r.Counting, &pb.Counting{Namespace: space("n", "2"), Counted: 5})
	ctltest.Want(t, print(), "40 none "+space("n", "1"), "40 blocks do not count: "+unsaid)
}

// TestReasonsOfUntoldBlocks checks why blocks are not told to routers, by the daemon's metrics.
func TestReasonsOfUntoldBlocks(t *testing.T) {
	n := block.Namespace{Model: "m", Revision: "1", DType: "bf16", Layout: "l", Tokens: block.Tokens, TP: 1, PP: 1}
	for want, values := range map[string]map[string]int64{
		"they have expired": nil, "more blocks than the daemon tells": {"residency_overflow": 1},
		"until the fleet's purges are read": {"residency_overflow": 1, "fleet_hidden": 1},
	} {
		all := reasons(&pb.Counting{NamelessSsd: 5}, n, values)
		if len(all) != 1 || all[0].Blocks != 5 || !strings.Contains(all[0].Why, want) {
			t.Errorf("%v: %+v", values, all)
		}
	}
}
