package kv

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/screen"
	"github.com/cognitora/dataplane/kv/block"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// statsReport is the JSON output of kv stats.
type statsReport struct {
	Epoch      uint64           `json:"epoch"`
	Namespaces []namespaceUse   `json:"namespaces"`
	Engines    []engineBlocks   `json:"engines"`
	Readers    []reader         `json:"readers"`
	Counting   []counting       `json:"counting"`
	Values     map[string]int64 `json:"values"`
}

type namespaceUse struct {
	Namespace string `json:"namespace"`
	RAMBlocks uint64 `json:"ram_blocks"`
	RAMBytes  uint64 `json:"ram_bytes"`
	SSDBlocks uint64 `json:"ssd_blocks"`
	SSDBytes  uint64 `json:"ssd_bytes"`
}

// engineBlocks is the number of blocks of a namespace and an adapter that an engine reports to
// have.
type engineBlocks struct {
	Engine    string `json:"engine"`
	Namespace string `json:"namespace"`
	Adapter   string `json:"adapter,omitempty"`
	Blocks    uint64 `json:"blocks"`
	Device    uint64 `json:"device"`
	Host      uint64 `json:"host"`
	Disk      uint64 `json:"disk"`
	Shared    uint64 `json:"shared"`
	Pinned    uint64 `json:"pinned"`
}

// reader is a node whose engine has told what it can read.
type reader struct {
	Node       string   `json:"node"`
	Namespaces []string `json:"namespaces"`
}

func newStats(k *commands) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "stats", Short: "Print what the cache holds and has done", Args: cli.NoArguments,
		Long: "BLOCKS are blocks of 16 tokens that routers count for the nodes of IN ROUTING FOR, on this host, and below " +
			"are those that they\n" +
			"do not count, with the reason. Nodes whose engines have not said what they read count a model's blocks " +
			"in one namespace.\n\n" +
			"BYTES is what a tier may have as it is configured. LIMIT is what segments on SSD may take now where " +
			"their filesystem has less\n" +
			"room than that, as cgn_kvcached_ssd_segment_limit_bytes; - where it has enough.",
		Example: "  cgn-ctl kv stats\n  cgn-ctl kv stats --all",
		RunE: func(c *cobra.Command, _ []string) error {
			return k.Soon(c.Context(), func(ctx context.Context, client pb.KvClient) error {
				r, err := client.Stats(ctx, &pb.StatsRequest{Counting: true})
				if err != nil {
					return err
				}
				s := statsReport{Epoch: r.Epoch, Namespaces: []namespaceUse{}, Engines: []engineBlocks{},
					Readers: []reader{}, Counting: countings(r), Values: r.Values}
				for _, of := range r.Readers {
					s.Readers = append(s.Readers, reader{of.Node, append([]string{}, of.Namespaces...)})
				}
				for _, e := range r.Engines {
					s.Engines = append(s.Engines, engineBlocks{e.Engine, e.Namespace, e.Adapter, e.Blocks, e.Device,
						e.Host, e.Disk, e.Shared, e.Pinned})
				}
				for _, n := range r.Namespaces {
					s.Namespaces = append(s.Namespaces, namespaceUse{n.Namespace, n.RamBlocks, n.RamBytes, n.SsdBlocks,
						n.SsdBytes})
				}
				return k.Show(s, func(t *cli.Table) { s.write(t, all) })
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "every counter")
	return c
}

// write prints the state of the tiers and the namespaces. write also prints every counter if all is
// set.
func (s *statsReport) write(t *cli.Table, all bool) {
	v := s.Values
	t.Row("TIER", "BYTES", "LIMIT", "USED", "BLOCKS", "PINNED")
	t.Row("ram", v["store_ram_size"], "-", v["store_ram_size"]-v["store_ram_free"], v["store_ram_blocks"],
		v["store_ram_pinned"])
	if v["store_ssd_cap"] > 0 {
		t.Row("ssd", v["store_ssd_cap"], cell.Limit(int(v["store_ssd_segment_limit"])),
			v["store_ssd_segment_bytes"]+v["store_ssd_row_file_bytes"],
			v["store_ssd_records"], "-")
	}
	ratio, found := "-", v["store_hits"]+v["store_promotions"]
	if asked := found + v["store_misses"]; asked > 0 {
		ratio = fmt.Sprintf("%.1f %%", 100*float64(found)/float64(asked))
	}
	t.Line(fmt.Sprintf("\nfound in RAM %d, on SSD %d, not found %d: %s hits; %d blocks stored, %d evicted from RAM\n",
		v["store_hits"], v["store_promotions"], v["store_misses"], ratio, v["store_puts"], v["store_ram_evictions"]))
	t.Row("NAMESPACE", "RAM BLOCKS", "RAM BYTES", "SSD BLOCKS", "SSD BYTES")
	for _, n := range s.Namespaces {
		t.Row(n.Namespace, n.RAMBlocks, n.RAMBytes, n.SSDBlocks, n.SSDBytes)
	}
	s.writeCounting(t)
	if len(s.Readers) > 0 {
		t.Line("")
		t.Row("NODE", "CAN READ, BESIDES OTHER RANKS")
		for _, of := range s.Readers {
			for _, namespace := range of.Namespaces {
				t.Row(of.Node, namespace)
			}
			if len(of.Namespaces) == 0 {
				t.Row(of.Node, "nothing")
			}
		}
	}
	if len(s.Engines) > 0 {
		t.Line("")
		t.Row("ENGINE", "ADAPTER", "BLOCKS", "DEVICE", "HOST", "DISK", "SHARED", "PINNED", "NAMESPACE")
		for _, e := range s.Engines {
			t.Row(e.Engine, cmp.Or(e.Adapter, "-"), e.Blocks, e.Device, e.Host, e.Disk, e.Shared, e.Pinned, e.Namespace)
		}
	}
	s.writeChunks(t)
	if !all {
		return
	}
	t.Line("")
	for _, name := range slices.Sorted(maps.Keys(v)) {
		t.Row(name, v[name])
	}
}

// writeChunks prints how many chunks count, and why others do not. writeChunks prints nothing if
// there are none.
func (s *statsReport) writeChunks(t *cli.Table) {
	v := s.Values
	if v["chunks_parts"]+v["chunks_forms"]+v["chunks_tags"]+v["chunks_beside"]+v["chunks_refused"] == 0 {
		return
	}
	t.Line(fmt.Sprintf("\nChunks of LMCache, vLLM's tier and HiCache: %d count in routing; not told %d, incomplete %d, "+
		"disputed %d; stored keys of an unknown form %d, with tags %d, beyond the table %d", v["chunks_counted"],
		v["chunks_untold"], v["chunks_incomplete"], v["chunks_disputed"], v["chunks_forms"], v["chunks_tags"],
		v["chunks_full"]))
	for _, line := range []struct{ name, says string }{
		{"beside", "objects that an SGLang needs besides pages: pages of their models count as incomplete"},
		{"refused", "told chunks were not taken: they contradict what is known, or cannot count"},
		{"unkept", "notes could not be kept with a chunk's part: those chunks do not count after a restart"},
		{"notes", "notes on chunks could not be read: their chunks count once they are told again"},
	} {
		if n := v["chunks_"+line.name]; n > 0 {
			t.Line(fmt.Sprintf("%d %s", n, line.says))
		}
	}
}

// listedBlock is a line of kv ls.
type listedBlock struct {
	Block     string `json:"block,omitempty"` // argument for kv get; a key needs --namespace
	Key       string `json:"key,omitempty"`
	Namespace string `json:"namespace"`
	Layer     uint32 `json:"layer"`
	Digest    string `json:"digest"`
	Parent    string `json:"parent,omitempty"`
	Bytes     uint32 `json:"bytes"`
	Tiers     string `json:"tiers"`
	Uses      uint32 `json:"uses"`
	ExpiresMS int64  `json:"expires_unix_ms,omitempty"`
}

func newList(k *commands) *cobra.Command {
	var namespace string
	var limit int
	c := &cobra.Command{
		Use: "ls", Short: "List blocks", Args: cli.NoArguments,
		Long: "Lists blocks in no order, each once. On a terminal a block that is no client's key is shown by the " +
			"beginning of its digest;\n" +
			"in a pipe, and as block with -o json, it has the name that kv get takes. A client's key goes there with " +
			"its --namespace; of\n" +
			"more than 60 bytes only the beginning is shown, and all of it with -o json. Blocks of this host are " +
			"listed, not those of a fleet.\n" +
			"USES counts reads since the block came into the tier; the write that stored it is none.",
		Example: "  cgn-ctl kv ls --limit 20\n  cgn-ctl kv ls --namespace 'key1;resp.0;' -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.InRange("limit", fmt.Sprint(limit), 1, mostListed); err != nil {
				return err
			}
			if err := checkNamespace(namespace); err != nil {
				return err
			}
			var list []listedBlock
			var more bool
			if err := k.Call(c.Context(), func(ctx context.Context, client pb.KvClient) (err error) {
				list, more, err = listBlocks(ctx, client, namespace, limit)
				return err
			}); err != nil {
				return err
			}
			return k.Show(list, func(t *cli.Table) {
				t.Row("BLOCK", "LAYER", "BYTES", "TIERS", "USES", "EXPIRES", "NAMESPACE")
				for i := range list {
					b := &list[i]
					t.Row(b.name(screen.IsTerminal(k.Out)), b.layer(), b.Bytes, b.Tiers, b.Uses, b.expires(),
						b.Namespace)
				}
				if more {
					t.Line(fmt.Sprintf("… and more: --limit lists up to %d", mostListed))
				}
			})
		},
	}
	c.Flags().StringVar(&namespace, "namespace", "", "blocks of this namespace only")
	c.Flags().IntVar(&limit, "limit", 100, "blocks to list at most")
	return c
}

// mostListed is the largest number of blocks that kv ls reads.
const mostListed = 10_000_000

// listBlocks pages through the cache. more tells whether there are blocks beyond the listed ones.
func listBlocks(ctx context.Context, client pb.KvClient, namespace string,
	limit int) (list []listedBlock, more bool, err error) {
	list = []listedBlock{}
	seen := map[string]bool{} // a block in two tiers is listed twice
	for cursor := uint64(0); ; {
		r, err := client.List(ctx, &pb.ListRequest{Namespace: namespace, Cursor: cursor,
			Limit: uint32(min(limit+1-len(list), 1000))})
		if err != nil {
			return nil, false, err
		}
		for _, b := range r.Blocks {
			name := fmt.Sprint(b.Namespace, ":", b.Layer, ":", string(b.Digest))
			if seen[name] {
				continue
			}
			seen[name] = true
			list = append(list, listedBlock{
				Block: blockName(b), Key: string(b.Key), Namespace: b.Namespace, Layer: b.Layer,
				Digest: hex.EncodeToString(b.Digest), Parent: hex.EncodeToString(b.Parent),
				Bytes: b.Length, Tiers: tierNames(b.Tiers), Uses: b.Uses, ExpiresMS: b.ExpiresUnixMs,
			})
		}
		cursor = r.Next
		if len(list) > limit || cursor == 0 {
			return list[:min(len(list), limit)], len(list) > limit, nil
		}
	}
}

// blockName returns the client's key, or the block's address as text.
func blockName(b *pb.ListedBlock) string {
	if len(b.Key) > 0 || len(b.Digest) != len(block.Digest{}) {
		return string(b.Key)
	}
	return block.Text(b.Namespace, block.Addr{Digest: block.Digest(b.Digest), Layer: b.Layer})
}

// shownKey is how many bytes of a client's key the table shows.
const shownKey = 60

// shortKey returns a client's key, printable and cut to shownKey.
func shortKey(key string) string {
	if len(key) <= shownKey {
		return unquoted(key)
	}
	return unquoted(key[:shownKey]) + "…"
}

// unquoted escapes the characters of text that cannot be printed.
func unquoted(text string) string {
	q := strconv.Quote(text)
	return q[1 : len(q)-1]
}

// name returns the block's printable name. The short form is only for display.
func (b *listedBlock) name(short bool) string {
	switch {
	case b.Key != "":
		return shortKey(b.Key)
	case short:
		return b.Digest[:16]
	}
	return b.Block
}

func (b *listedBlock) layer() string {
	if b.Layer == 1<<32-1 {
		return "all"
	}
	return fmt.Sprint(b.Layer)
}

func (b *listedBlock) expires() string {
	if b.ExpiresMS == 0 {
		return "-"
	}
	return time.Until(time.UnixMilli(b.ExpiresMS)).Round(time.Second).String()
}
