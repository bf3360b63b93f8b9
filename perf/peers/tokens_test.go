package peers

import (
	"testing"

	"github.com/cognitora/dataplane/router/tokens"
)

// BenchmarkTokenise makes the tokens of prompts of 3,500 tokens, as the router does to use KV
// events: of new prompts, and of prompts that the cache of tokens knows.
func BenchmarkTokenise(b *testing.B) {
	const length, prompts, most = 3500, 600, 512 << 10
	dir := b.TempDir()
	if err := writeModel(dir); err != nil {
		b.Fatal(err)
	}
	model, err := tokens.Load(dir, "")
	if err != nil {
		b.Fatal(err)
	}
	var bodies [][]byte
	for i := range prompts {
		prompt := newBody(length)
		prompt.open("user")
		prompt.words(length, uint64(i), 1)
		bodies = append(bodies, prompt.close(1))
	}
	for name, cache := range map[string]int{"new": 1 << 20, "known": 64 << 20} {
		b.Run(name, func(b *testing.B) {
			set := tokens.NewSet(map[string]*tokens.Model{modelName: model}, cache, most)
			var ids []uint32
			for _, body := range bodies {
				ids = set.Make(modelName, tokens.Chat, body, 0, ids[:0]).IDs
			}
			made, encoded := 0, 0
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r := set.Make(modelName, tokens.Chat, bodies[i%prompts], 0, ids[:0])
				ids, made, encoded = r.IDs, made+len(r.IDs), encoded+r.Encoded
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(made)*1000, "us/1000-tokens")
			b.ReportMetric(float64(encoded)/float64(b.N), "new-B/op")
		})
	}
}
