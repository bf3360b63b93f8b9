package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"time"

	"github.com/cognitora/dataplane/internal/enginemetrics"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/internal/lora"
	"github.com/cognitora/dataplane/router/health"
)

const (
	maxProbeModels = 1024        // models of one engine; any further model is not served
	metricsRetry   = time.Minute // for an engine without /metrics
)

// discovery is an engine's description of itself. discovery is immutable.
type discovery struct {
	asked       bool   // the engine was asked for its models
	refusal     string // the engine's answer, when that is no model list
	models      []string
	adapters    []lora.Adapter // the LoRA adapters among models
	engine      string
	version     string // of the engine; empty: unknown
	blockTokens int
	engineSlots int32 // requests at once; 0: the engine does not say
	ranks       int   // data-parallel ranks; 0: the engine does not say
}

// discover reads /v1/models. A server without this path serves its configured model.
func (a *asker) discover(ctx context.Context) error {
	now := time.Now()
	if a.relist.Swap(false) {
		a.modelsAt = time.Time{}
	}
	if a.node.Health.State() == health.Healthy && now.Sub(a.modelsAt) < a.fleet.o.ModelsInterval {
		return nil
	}
	status, body, err := a.node.Health.Get(ctx, "/v1/models")
	if err != nil {
		return err
	}
	d := a.discovered()
	d.asked, d.refusal = true, ""
	switch {
	case status == http.StatusOK:
		before := d.engine
		if d.models, d.adapters, d.engine, err = readModels(body); err != nil {
			return err
		}
		if len(d.models) > 0 {
			a.node.adapters.List(d.adapters, lora.KeepingOf(d.engine), now)
		}
		if d.engine != before {
			d.engineSlots = 0
		}
		d.version = a.version(ctx, d.engine)
		if d.engine == llamaCPP {
			d.engineSlots = a.slots(ctx, d.engineSlots)
		}
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		if !a.clientKeys() {
			return fmt.Errorf("/v1/models answers %d; give the engine's key with api_key_file=, or name its model "+
				"with model= "+
				"if clients bring keys (router.forward_auth)", status)
		}
	case status >= 500 && status != http.StatusNotImplemented:
		return fmt.Errorf("/v1/models answers %d", status)
	default:
		d.refusal = refusal(status, body)
	}
	a.modelsAt = now
	a.publish(ctx, d)
	return nil
}

// refusal describes an answer that is not a model list. An answer may say that the server expects
// HTTPS.
func refusal(status int, body []byte) string {
	text := fmt.Sprintf("its /v1/models answers %d", status)
	if status == http.StatusBadRequest && bytes.Contains(body[:min(len(body), 1<<10)], []byte("HTTPS")) {
		text += " (it speaks TLS: write https:// in its URL)"
	}
	return text
}

// noModels says why no model of the engine is known.
func (d discovery) noModels() string {
	if d.refusal != "" {
		return d.refusal + ", so no model is known; give one with model="
	}
	return "its /v1/models names no model; give one with model="
}

// noModels says why no model of the node is known.
func (n *Node) noModels() string {
	return n.asker.discovered().noModels()
}

// clientKeys says whether the engine may ask for the keys of clients. The engine may ask for
// clients' keys when its model is configured and its own key is not. The router then cannot read
// the model list and does not need the list.
func (a *asker) clientKeys() bool {
	return a.node.Pool.Target().Authorization == "" && len(a.node.Info().Models) > 0
}

// publish hands d to the fleet's goroutine.
func (a *asker) publish(ctx context.Context, d discovery) {
	if reflect.DeepEqual(d, a.discovered()) {
		return
	}
	a.found.Store(&d)
	if d.asked && len(d.models) == 0 && len(a.node.Info().Models) == 0 {
		a.node.setFlag(flagNoModel, true) // before the check counts the node as healthy
	}
	a.fleet.send(ctx, func(f *Fleet) {
		if m := f.members[a.node.ID]; m != nil && m.node == a.node {
			f.refresh(m)
		}
	})
}

// restarted reports that the engine has restarted with an empty cache.
func (a *asker) restarted(ctx context.Context) {
	if a.node.Source != Static {
		return // kv_epoch in the heartbeat reports the restart
	}
	a.fleet.send(ctx, func(f *Fleet) {
		if m := f.members[a.node.ID]; m != nil && m.node == a.node {
			f.joinIndex(a.node)
		}
	})
}

// readModels reads an OpenAI model list. readModels takes the engine's kind from owned_by. A model
// with a parent is a LoRA adapter.
func readModels(body []byte) (models []string, adapters []lora.Adapter, engine string, err error) {
	var list struct {
		Data []struct {
			ID      string `json:"id"`
			OwnedBy string `json:"owned_by"`
			Parent  string `json:"parent"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, nil, "", fmt.Errorf("/v1/models: %w", err)
	}
	for _, m := range list.Data {
		if m.ID == "" || len(m.ID) > 512 || len(models) == maxProbeModels || slices.Contains(models, m.ID) {
			continue
		}
		models = append(models, m.ID)
		if m.Parent != "" && m.Parent != m.ID && len(m.Parent) <= 512 {
			adapters = append(adapters, lora.Adapter{Name: m.ID, Base: m.Parent})
		}
		if kind := engineKinds[m.OwnedBy]; kind != "" {
			engine = kind
		}
	}
	return models, adapters, engine, nil
}

const (
	vLLM     = "vllm"
	llamaCPP = "llama_cpp"
)

// engineKinds maps owned_by of a model to the engine's kind.
var engineKinds = map[string]string{"vllm": vLLM, "sglang": "sglang", "llamacpp": llamaCPP, "tensorrt_llm": "trtllm"}

// scrape reads the engine's own metrics when they are due. The load of an engine without metrics is
// unknown, not zero.
func (a *asker) scrape(ctx context.Context) {
	now := time.Now()
	if now.Before(a.metricsAt) {
		return
	}
	a.metricsAt = now.Add(a.fleet.o.ScrapeInterval)
	status, page, err := a.node.Health.Get(ctx, "/metrics")
	if err != nil || ctx.Err() != nil {
		return
	}
	if status != http.StatusOK {
		a.metricsAt = now.Add(metricsRetry)
		return
	}
	stats := enginemetrics.Parse(page)
	a.node.setLoad(scraped(&stats, stats.ByRank(page), now), time.Now())
	a.node.adapters.Scrape(page, now)
	a.learn(ctx, &stats)
}

// scraped returns the load in a scrape that was started at now. ranks has the numbers of each
// data-parallel rank, if there are several. A figure that the engine does not export is unknown.
func scraped(stats *enginemetrics.Stats, ranks []enginemetrics.Rank, now time.Time) beat {
	var e load.Engine
	if stats.Known(enginemetrics.Running) {
		e.InFlight = load.Known(stats.Running + stats.Waiting)
	}
	if stats.Known(enginemetrics.Waiting) {
		e.QueueDepth = load.Known(stats.Waiting)
	}
	if stats.Known(enginemetrics.KVUsage) {
		e.KVUsage = load.Known(stats.KVUsage)
	}
	if free, known := stats.FreeBlocks(); known {
		e.FreeBlocks, e.TotalBlocks = load.Known(free), load.Known(stats.TotalBlocks)
	}
	e.Ranks = stats.Loads(ranks)
	b := beat{Load: load.Load{Engine: e}, from: Metrics, trust: defaultTrust}
	b.Fit()
	b.Arrived(now)
	return b
}

// learn reads the engine's start time, and figures that only a restart changes, from its metrics.
func (a *asker) learn(ctx context.Context, stats *enginemetrics.Stats) {
	if stats.Known(enginemetrics.StartTime) {
		if a.startTime != 0 && stats.StartTime != a.startTime {
			a.restarted(ctx)
		}
		a.startTime = stats.StartTime
	}
	d := a.discovered()
	if stats.Known(enginemetrics.BlockTokens) {
		d.blockTokens = int(stats.BlockTokens)
	}
	if stats.Ranks > 0 {
		d.ranks = stats.Ranks
	}
	if stats.Known(enginemetrics.MaxSlots) {
		d.engineSlots = slotsOf(stats.MaxSlots)
	}
	a.publish(ctx, d)
}

// slotsOf converts the number of requests that an engine computes at once. An unknown or impossible
// number becomes 0.
func slotsOf(said float64) int32 {
	if said < 1 || said > load.MaxRequests {
		return 0
	}
	return int32(said)
}

// maxVersion is the longest version of an engine, in bytes.
const maxVersion = 64

// version asks a vLLM server for its version. version returns "" when the server does not say.
func (a *asker) version(ctx context.Context, engine string) string {
	if engine != vLLM {
		return ""
	}
	status, body, err := a.node.Health.Get(ctx, "/version")
	if err != nil || status != http.StatusOK {
		return ""
	}
	var about struct {
		Version string `json:"version"`
	}
	if json.Unmarshal(body, &about) != nil || len(about.Version) > maxVersion {
		return ""
	}
	return about.Version
}

// slots asks a llama.cpp server how many requests it computes at once. slots returns last when the
// server does not say.
func (a *asker) slots(ctx context.Context, last int32) int32 {
	status, body, err := a.node.Health.Get(ctx, "/props")
	if err != nil || status != http.StatusOK {
		return last
	}
	var props struct {
		TotalSlots float64 `json:"total_slots"`
	}
	if json.Unmarshal(body, &props) != nil {
		return last
	}
	return slotsOf(props.TotalSlots)
}
