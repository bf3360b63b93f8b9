package fleet

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/cognitora/dataplane/internal/cluster"
)

// BenchmarkPublish measures a new snapshot of a fleet in which a number of adapters have the model
// as their base.
func BenchmarkPublish(b *testing.B) {
	for _, nodes := range []int{64, 256, 512} {
		for _, adapters := range []int{0, 64, 256} {
			b.Run(fmt.Sprintf("%d nodes/%d adapters", nodes, adapters), func(b *testing.B) {
				o := Options{Logger: slog.New(slog.DiscardHandler), Models: map[string]*cluster.Model{}}
				for i := range nodes {
					o.Backends = append(o.Backends, Backend{ID: fmt.Sprint("node-", i), Model: "sim",
						URL: fmt.Sprintf("http://10.0.%d.%d:8000", i>>8, i&255)})
				}
				for i := range adapters {
					o.Models[fmt.Sprint("adapter-", i)] = &cluster.Model{Base: "sim"}
				}
				f, err := New(o)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					f.publish()
				}
			})
		}
	}
}
