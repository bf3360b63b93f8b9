package fleet

import (
	"fmt"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/lora"
)

// BenchmarkAdapterResident asks 64 nodes with 64 adapters each whether they have loaded one, as a
// pick for the adapter does.
func BenchmarkAdapterResident(b *testing.B) {
	nodes := make([]*Node, 64)
	names := []string{"llama-3-8b"}
	var adapters []lora.Adapter
	for i := range 64 {
		names = append(names, fmt.Sprintf("customer-%02d-lora", i))
		adapters = append(adapters, lora.Adapter{Name: names[i+1], Base: names[0]})
	}
	for i := range nodes {
		n := newNode(fmt.Sprint(i), Static, &Info{Models: names, Upstream: names, Adapters: adapters}, nil)
		n.adapters.List(adapters, lora.Latest, time.Unix(1, 0))
		n.adapters.SetSlots(8)
		for j := range 16 {
			n.adapters.Use(names[1+(i+j)%64], time.Unix(int64(10+j), 0))
		}
		nodes[i] = n
	}
	for _, name := range []string{names[0], names[1], names[64]} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				for _, n := range nodes {
					n.AdapterResident(name)
				}
			}
		})
	}
}
