package cluster

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/sim/engine"
)

// Traffic is a kind of workload at any rate, with the fleet that answers it.
type Traffic struct {
	Name string
	// Requests is the number of requests for 8 nodes, and grows with the nodes. Recorded traffic
	// has those of its trace.
	Requests int
	// Fleet answers the requests. At sets its Seed and Speed, and Speeds and Slow if the kind has
	// them.
	Fleet Config

	generator trace.Generator
	parts     []part        // independent requests in place of the generator
	recorded  *Workload     // a trace in place of the generator
	returning int           // blocks of the documents to which requests return, in place of the generator; 0: none
	uneven    bool          // the nodes differ in speed
	slow      time.Duration // in which a node is slower
	apart     bool          // the kind is not among all
}

// fleetOf8 is the fleet of every kind.
func fleetOf8() Config {
	return Config{
		Nodes: 8, Engine: modelled, Limit: -1,
		Telemetry: Telemetry{Every: time.Second, Age: 500 * time.Millisecond},
	}
}

// unevenSpeeds are the speeds of each 8 nodes of uneven traffic.
var unevenSpeeds = [...]float64{1, 1, 1, 1, 2, 2, 0.5, 0.5}

// Traffics returns the generated kinds. The lengths are means, and every length varies much.
//
//   - chat: turns under 8 system prompts of 1024 tokens; 600 new tokens, then 200 and the last
//     answer; answers of 350.
//   - agents: 12 quick steps under tool prompts of 4096 tokens; 700 new tokens; answers of 120.
//   - documents: 4 questions about a document of 18,000 tokens; answers of 250.
//   - questions: 150 tokens after a system prompt of 512; answers of 180.
//   - bursts: chat, and now and then 50 to 200 requests within 2 s on one new prompt of 4,000 to
//     12,000 tokens.
//   - nodes: all of these but bursts, on nodes of which two are twice and two half as fast as the
//     others. A node becomes five times slower for a minute.
//   - recovery: the same requests on 3 equal nodes. A node becomes five times slower for 3 minutes.
//     At a load such as 0.3 the other two can do without it, and a mode must try it again.
//   - long: independent prompts of 8,000 tokens; answers of 100.
//   - mixed: two fifths of the requests are like those of long. The others have prompts of 1,000
//     tokens and answers of 400.
func Traffics() []Traffic {
	of := func(name string, requests int, m trace.Mix) Traffic {
		g := trace.Generator{Mix: m, Steady: true, Heavy: true, MaxInput: 60_000}
		return Traffic{Name: name, Requests: requests, Fleet: fleetOf8(), generator: g}
	}
	bursts := of("bursts", 3000, trace.Mix{Chat: 1})
	bursts.generator.BurstEvery = 500
	nodes := of("nodes", 3000, trace.Mix{Chat: 0.4, Documents: 0.1, Agents: 0.2, Questions: 0.3})
	nodes.uneven, nodes.slow = true, time.Minute
	recovery := of("recovery", 4000, nodes.generator.Mix)
	recovery.Fleet.Nodes, recovery.slow, recovery.apart = 3, 3*time.Minute, true
	return []Traffic{
		of("chat", 3000, trace.Mix{Chat: 1}), of("agents", 3000, trace.Mix{Agents: 1}),
		of("documents", 2000, trace.Mix{Documents: 1}), of("questions", 8000, trace.Mix{Questions: 1}),
		bursts, nodes, recovery, independent("long", 2000, longPart), independent("mixed", 3000, longPart, shortPart),
	}
}

// TrafficsNamed returns the kinds with these names, in the order of Traffics. "all" names all but
// recovery, long and mixed.
func TrafficsNamed(names []string) ([]Traffic, error) {
	wanted := map[string]bool{}
	for _, n := range names {
		wanted[n] = true
	}
	var found []Traffic
	known := []string{"all"}
	for _, t := range Traffics() {
		known = append(known, t.Name)
		if wanted["all"] && !t.apart || wanted[t.Name] {
			found = append(found, t)
		}
		delete(wanted, t.Name)
	}
	delete(wanted, "all")
	for n := range wanted {
		return nil, fmt.Errorf("%q: must be some of %s", n, strings.Join(known, ", "))
	}
	return found, nil
}

// Recorded returns a trace as traffic. Its seeds differ in random choices and in what clients send
// besides their prompts.
func Recorded(name string, w *Workload) Traffic {
	return Traffic{Name: name, Fleet: fleetOf8(), recorded: w}
}

// modelled is the engine of these fleets, with plausible values for a model of 8 billion parameters
// in 16 bits on a GPU with 80 GB, 2 TB/s and 312 TFLOP/s. Reading the weights takes 8 ms of a
// decode step. KV memory has 400,000 tokens of 128 KiB, whose reading takes 26 ms. Prefill reaches
// 40 % of the GPU's arithmetic. With 32,768 tokens before a token, attention takes as much
// arithmetic as all else.
var modelled = engine.Config{
	CacheBlocks: 780, MaxSeqs: 64, MaxBatchTokens: 2048,
	PrefillTokensPerSecond: 8000, PrefillDoublesAt: 32 << 10,
	DecodeStep: 12 * time.Millisecond, DecodePerSequence: 100 * time.Microsecond, DecodePerBlock: 33 * time.Microsecond,
}

// At returns the workload of this seed at a mean rate of about perSecond requests per second, and
// its fleet. The mode is not set.
func (t *Traffic) At(seed uint64, perSecond float64) (*Workload, Config, error) {
	cfg := t.Fleet
	cfg.Seed, cfg.Speed = seed, 1
	w := t.recorded
	if w == nil {
		var err error
		if w, err = Load(t.source(seed, perSecond, max(t.Requests*cfg.Nodes/8, 1)), false); err != nil {
			return nil, cfg, err
		}
	} else {
		cfg.Speed = perSecond * max(w.Span().Seconds(), 1e-3) / float64(w.Len())
	}
	if t.slow > 0 {
		cfg.Slow = []Slow{slowdown(w, cfg.Nodes, t.slow)}
	}
	if t.uneven {
		cfg.Speeds = make([]float64, cfg.Nodes)
		for i := range cfg.Speeds {
			cfg.Speeds[i] = unevenSpeeds[i%len(unevenSpeeds)]
		}
	}
	return w.withClients(seed), cfg, nil
}

// source makes the requests.
func (t *Traffic) source(seed uint64, perSecond float64, requests int) trace.Source {
	if t.parts != nil {
		return newStrangers(t.parts, seed, perSecond, requests)
	}
	if t.returning > 0 {
		return newReturning(t.returning, seed, perSecond, requests)
	}
	g := t.generator
	g.Seed, g.PerSecond, g.Requests = seed, perSecond, requests
	return g.Source()
}

// slowdown makes a node of the usual speed five times slower for the time span.
func slowdown(w *Workload, nodes int, span time.Duration) Slow {
	from := w.Span() * 2 / 5
	return Slow{
		Node:     min(3, nodes-1),
		Slowdown: engine.Slowdown{From: from, To: from + span, Factor: 5},
	}
}

// withClients returns w with what clients send besides their prompts. Half of the requests have a
// bound on the answer, which is the lowest of three usual bounds that the answer meets. The
// requests of half of the sessions have the session's id.
func (w *Workload) withClients(seed uint64) *Workload {
	own := *w
	own.requests = append([]request(nil), w.requests...)
	for i := range own.requests {
		r := &own.requests[i]
		if coin(r.serial, seed) {
			r.maxTokens = usualBound(r.answer)
		}
		if n := uint64(r.number); n > 0 && coin(n, seed) {
			r.session = binary.BigEndian.AppendUint64(nil, n)
		}
	}
	return &own
}

func usualBound(answer int) int {
	for _, bound := range []int{256, 1024, 4096} {
		if answer <= bound {
			return bound
		}
	}
	return answer
}

func coin(number, seed uint64) bool { return trace.Spread(number^trace.Spread(seed))&1 == 1 }
