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
)

const (
	maxProbeModels = 1024        // of one engine; further ones are not served
	metricsRetry   = time.Minute // for an engine without /metrics
)

// discovery is what an engine says of itself. It is immutable.
type discovery struct {
	asked       bool   // it was asked for its models
	refusal     string // what it answered instead of a list of them
	models      []string
	engine      string
	blockTokens int
}

// discover reads /v1/models. A server that does not have it serves what is configured for it.
func (p *prober) discover(ctx context.Context) error {
	now := time.Now()
	if p.node.State() == Healthy && now.Sub(p.modelsAt) < p.fleet.opts.ModelsInterval {
		return nil
	}
	status, body, err := p.get(ctx, "/v1/models")
	if err != nil {
		return err
	}
	d := p.discovered()
	d.asked, d.refusal = true, ""
	switch {
	case status == http.StatusOK:
		if d.models, d.engine, err = readModels(body); err != nil {
			return err
		}
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		if !p.clientKeys() {
			return fmt.Errorf("/v1/models answers %d; give the engine's key with api_key_file=, or name its model with model= "+
				"if clients bring keys (router.forward_auth)", status)
		}
	case status >= 500 && status != http.StatusNotImplemented:
		return fmt.Errorf("/v1/models answers %d", status)
	default:
		d.refusal = refusal(status, body)
	}
	p.modelsAt = now
	p.publish(ctx, d)
	return nil
}

// refusal describes an answer that is no list of models. Servers tell who speaks HTTP to their HTTPS port.
func refusal(status int, body []byte) string {
	text := fmt.Sprintf("its /v1/models answers %d", status)
	if status == http.StatusBadRequest && bytes.Contains(body[:min(len(body), 1<<10)], []byte("HTTPS")) {
		text += " (is its URL https://?)"
	}
	return text
}

// noModels says why no model of the node is known, and what to do.
func (d *discovery) noModels() string {
	if d.refusal != "" {
		return d.refusal + ", so no model is known; give one with model="
	}
	return "its /v1/models names no model; give one with model="
}

func (n *Node) noModels() string {
	d := n.probe.discovered()
	return d.noModels()
}

// clientKeys tells whether the engine may ask for the keys of clients: its model is configured and a key of its own is not.
// The model list cannot be read then and need not be.
func (p *prober) clientKeys() bool { return p.line.Load().auth == "" && len(p.node.Info().Models) > 0 }

// publish lets the fleet's goroutine know what was found.
func (p *prober) publish(ctx context.Context, d discovery) {
	if reflect.DeepEqual(d, p.discovered()) {
		return
	}
	p.found.Store(&d)
	if d.asked && len(d.models) == 0 && len(p.node.Info().Models) == 0 {
		p.node.setFlag(flagNoModel, true) // before its check is well
	}
	p.fleet.send(ctx, func(f *Fleet) {
		if m := f.members[p.node.ID]; m != nil && m.node == p.node {
			f.refresh(m)
		}
	})
}

// restarted tells that the engine has started anew, with an empty cache.
func (p *prober) restarted(ctx context.Context) {
	if p.node.Source != Static {
		return // its heartbeat's kv_epoch says so
	}
	p.fleet.send(ctx, func(f *Fleet) {
		if m := f.members[p.node.ID]; m != nil && m.node == p.node {
			f.joinIndex(p.node)
		}
	})
}

// readModels reads an OpenAI model list, and the engine's kind out of owned_by.
func readModels(body []byte) (models []string, engine string, err error) {
	var list struct {
		Data []struct {
			ID      string `json:"id"`
			OwnedBy string `json:"owned_by"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, "", fmt.Errorf("/v1/models: %w", err)
	}
	for _, m := range list.Data {
		if m.ID == "" || len(m.ID) > 512 || len(models) == maxProbeModels || slices.Contains(models, m.ID) {
			continue
		}
		models = append(models, m.ID)
		if kind := engineKinds[m.OwnedBy]; kind != "" {
			engine = kind
		}
	}
	return models, engine, nil
}

var engineKinds = map[string]string{"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama_cpp"}

// scrape reads the engine's own metrics where that is due. An engine without them is unknown, not idle.
func (p *prober) scrape(ctx context.Context) {
	now := time.Now()
	if now.Before(p.metricsAt) {
		return
	}
	p.metricsAt = now.Add(p.fleet.opts.ScrapeInterval)
	status, page, err := p.get(ctx, "/metrics")
	if err != nil || ctx.Err() != nil {
		return
	}
	if status != http.StatusOK {
		p.metricsAt = now.Add(metricsRetry)
		return
	}
	stats := enginemetrics.Parse(page)
	p.node.setLoad(loadOf(&stats, p.node.ours(time.Now()), now))
	p.learn(ctx, &stats)
}

// loadOf makes telemetry of a scrape. ours is what this router had in flight meanwhile: what the engine holds beyond that
// is somebody else's.
func loadOf(stats *enginemetrics.Stats, ours int32, now time.Time) Load {
	l := unknownLoad
	l.At = now
	if stats.Known(enginemetrics.Running) {
		l.EngineBusy = float32(stats.Running)
	}
	if stats.Known(enginemetrics.KVUsage) {
		l.KVUsage = float32(stats.KVUsage)
	}
	l.Others = foreign(stats.Running+stats.Waiting, ours) // what is not known is 0
	if stats.Known(enginemetrics.Waiting) {
		l.EngineQueue = float32(stats.Waiting)
		l.Waiting = foreignWaiting(stats.Running+stats.Waiting, stats.Waiting, ours)
	}
	return l
}

// foreign is how many of the requests that the engine holds are not ours.
func foreign(held float64, ours int32) int32 {
	return int32(max(0, min(held-float64(ours), 1<<20)))
}

// foreignWaiting is how many of the waiting requests are not ours: never more than the engine holds beyond ours.
func foreignWaiting(held, waiting float64, ours int32) int32 {
	return min(foreign(waiting, 0), foreign(held, ours))
}

// learn takes from the metrics what changes with an engine's start.
func (p *prober) learn(ctx context.Context, stats *enginemetrics.Stats) {
	if stats.Known(enginemetrics.StartTime) {
		if p.startTime != 0 && stats.StartTime != p.startTime {
			p.restarted(ctx)
		}
		p.startTime = stats.StartTime
	}
	if stats.Known(enginemetrics.BlockTokens) {
		d := p.discovered()
		d.blockTokens = int(stats.BlockTokens)
		p.publish(ctx, d)
	}
}
