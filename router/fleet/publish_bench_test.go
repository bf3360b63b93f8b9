package fleet

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/lora"
)

// BenchmarkPublish measures a new snapshot of a fleet with a number of adapters. The settings have
// them with the model as their base, or engines list them, or both, or both with a base that is not
// served.
func BenchmarkPublish(b *testing.B) {
	for _, nodes := range []int{64, 256, 512} {
		for _, adapters := range []int{0, 64, 256} {
			b.Run(fmt.Sprintf("%d nodes/%d adapters", nodes, adapters), func(b *testing.B) {
				benchmarkPublish(b, nodes, adapters, "sim", "")
			})
			if adapters == 0 {
				continue
			}
			for _, c := range []struct{ name, configured, listed string }{
				{"listed", "", "sim"}, {"both", "sim", "sim"}, {"unknown base", "gone", "gone"},
			} {
				b.Run(fmt.Sprintf("%d nodes/%d adapters/%s", nodes, adapters, c.name), func(b *testing.B) {
					benchmarkPublish(b, nodes, adapters, c.configured, c.listed)
				})
			}
		}
	}
}

// benchmarkPublish measures a snapshot with adapters of a base in the settings and of one that the
// engines list; empty: none.
func benchmarkPublish(b *testing.B, nodes, adapters int, configured, listed string) {
	o := Options{Logger: slog.New(slog.DiscardHandler), Models: map[string]*cluster.Model{}}
	for i := range nodes {
		o.Backends = append(o.Backends, Backend{ID: fmt.Sprint("node-", i), Model: "sim",
			URL: fmt.Sprintf("http://10.0.%d.%d:8000", i>>8, i&255)})
	}
	names, list := []string{"sim"}, []lora.Adapter(nil)
	for i := range adapters {
		name := fmt.Sprint("adapter-", i)
		if configured != "" {
			o.Models[name] = &cluster.Model{Base: configured}
		}
		if listed != "" {
			names, list = append(names, name), append(list, lora.Adapter{Name: name, Base: listed})
		}
	}
	f, err := New(o)
	if err != nil {
		b.Fatal(err)
	}
	for _, m := range f.members {
		info := *m.node.Info()
		info.Models, info.Upstream, info.Adapters = names, names, list
		m.node.setInfo(&info)
		m.node.adapters.List(list, lora.Latest, time.Unix(1, 0))
	}
	b.ReportAllocs()
	for b.Loop() {
		f.publish()
	}
}
