package rpc

import (
	"cmp"
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"unicode"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// counters are the counters besides calls.
type counters struct {
	refused           atomic.Uint64
	turnedAway        atomic.Uint64
	denied            atomic.Uint64
	bytesIn, bytesOut atomic.Uint64
	connections       atomic.Int64
}

// Stats of a Server.
type Stats struct {
	Connections int64             // open
	Denied      uint64            // connections to a Unix socket refused for their user and groups
	TurnedAway  uint64            // connections above the bound
	Refused     uint64            // calls without the right of their certificate's role
	BytesIn     uint64            // payload bytes of Put
	BytesOut    uint64            // payload bytes of Get
	Calls       map[string]uint64 // by method
	Failed      map[string]uint64 // failed ones, by method
}

// Stats returns a snapshot.
func (s *Server) Stats() Stats {
	st := Stats{
		Connections: s.stats.connections.Load(),
		Denied:      s.stats.denied.Load(), TurnedAway: s.stats.turnedAway.Load(), Refused: s.stats.refused.Load(),
		BytesIn: s.stats.bytesIn.Load(), BytesOut: s.stats.bytesOut.Load(),
		Calls: map[string]uint64{}, Failed: map[string]uint64{},
	}
	for _, m := range s.methods {
		st.Calls[m.name], st.Failed[m.name] = m.calls.Load(), m.failed.Load()
	}
	return st
}

// maxUsages bounds the namespaces, and the engines' rows, in an answer of Stats.
const maxUsages = 1000

// Stats tells the daemon's contents and counters.
func (s *service) Stats(ctx context.Context, r *pb.StatsRequest) (*pb.StatsResponse, error) {
	out := &pb.StatsResponse{Epoch: s.o.Residency.Epoch(), Values: map[string]int64{}}
	all := s.o.Store.Namespaces()
	slices.SortFunc(all, func(a, b store.NamespaceUsage) int {
		return cmp.Compare(b.Bytes+b.SSDBytes, a.Bytes+a.SSDBytes)
	})
	for _, u := range all[:min(len(all), maxUsages)] {
		out.Namespaces = append(out.Namespaces, &pb.NamespaceUsage{
			Namespace: u.Namespace, RamBlocks: uint64(u.Blocks), RamBytes: uint64(u.Bytes),
			SsdBlocks: uint64(u.SSDBlocks), SsdBytes: uint64(u.SSDBytes),
		})
	}
	for _, u := range s.o.Residency.Usage(maxUsages) {
		out.Engines = append(out.Engines, &pb.EngineUsage{
			Engine: u.Engine, Namespace: u.Namespace, Adapter: u.Adapter, Blocks: uint64(u.Blocks),
			Device: uint64(u.Device), Host: uint64(u.Host),
			Disk: uint64(u.Disk), Shared: uint64(u.Shared), Pinned: uint64(u.Pinned),
		})
	}
	if r.Counting {
		var err error
		if out.Counting, err = s.counting(ctx, all); err != nil {
			return nil, err
		}
	}
	for _, r := range s.o.Residency.Readers() {
		out.Readers = append(out.Readers, &pb.Reader{Node: r.Node, Namespaces: r.Namespaces})
	}
	parts := map[string]any{}
	if s.o.Parts != nil {
		parts = s.o.Parts()
	}
	for name, v := range parts {
		values(out.Values, name, reflect.ValueOf(v))
	}
	values(out.Values, "store", reflect.ValueOf(s.o.Store.Stats()))
	values(out.Values, "residency", reflect.ValueOf(s.o.Residency.Stats()))
	values(out.Values, "rpc", reflect.ValueOf(s.Server.Stats()))
	return out, nil
}

// counting says which blocks of models count in routing. stored is what the store has.
func (s *service) counting(ctx context.Context, stored []store.NamespaceUsage) ([]*pb.Counting, error) {
	known, err := s.o.Residency.Counting(ctx)
	if err != nil {
		return nil, err
	}
	byName := map[string]*pb.Counting{}
	for _, u := range stored {
		n, err := block.ParseNamespace(u.Namespace)
		if err != nil || n.Space != "" {
			continue
		}
		text := n.FirstRank().String()
		c := byName[text]
		if c == nil {
			c = &pb.Counting{Namespace: text}
			byName[text] = c
		}
		c.NamelessRam, c.NamelessSsd = c.NamelessRam+uint64(u.Blocks), c.NamelessSsd+uint64(u.SSDBlocks)
	}
	for _, k := range known {
		c := byName[k.Namespace]
		if c == nil { // chunks, whose parts have keys
			c = &pb.Counting{Namespace: k.Namespace}
			byName[k.Namespace] = c
		}
		c.Counted, c.Unplaced, c.Incomplete = uint64(k.Counted), uint64(k.Unplaced), uint64(k.Incomplete)
		c.OtherLayers = uint64(k.OtherLayers)
		c.NamelessRam -= min(c.NamelessRam, uint64(k.Objects[0]))
		c.NamelessSsd -= min(c.NamelessSsd, uint64(k.Objects[1]))
	}
	names := slices.Sorted(maps.Keys(byName))
	list := make([]*pb.Counting, 0, len(names))
	for _, name := range names[:min(len(names), maxUsages)] {
		list = append(list, byName[name])
	}
	return list, nil
}

// values adds the numbers of a struct of counters, by their fields' names.
func values(to map[string]int64, name string, v reflect.Value) {
	switch {
	case v.CanInt():
		to[name] = v.Int()
	case v.CanUint():
		to[name] = int64(v.Uint())
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() {
				continue
			}
			if f.Anonymous {
				values(to, name, v.Field(i))
			} else {
				values(to, name+"_"+snake(f.Name), v.Field(i))
			}
		}
	case v.Kind() == reflect.Map && v.Type().Key().Kind() == reflect.String:
		for i := v.MapRange(); i.Next(); {
			values(to, name+"_"+snake(i.Key().String()), i.Value())
		}
	}
}

// snake is a field's name in lower case with underscores.
func snake(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		upper := unicode.IsUpper(r)
		if upper && i > 0 && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
