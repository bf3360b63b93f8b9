package engine

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"unicode/utf8"
)

// version is the vLLM release whose wire format is simulated.
const version = "0.32.0"

// ServeHTTP serves all paths of the engine.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.mux.ServeHTTP(w, r) }

func (e *Engine) routes() http.Handler {
	mux := http.NewServeMux()
	for path, f := range map[string]endpoint{
		"POST /v1/chat/completions":      parsed(chat),
		"POST /v1/completions":           parsed(completions),
		"POST /v1/responses":             parsed(createResponse),
		"POST /v1/messages":              parsed(createMessage),
		"POST /v1/messages/count_tokens": parsed(countTokens),
		"POST /v1/embeddings":            parsed(embeddings),
		"POST /v1/rerank":                parsed(rerank),
		"POST /v2/rerank":                parsed(rerank),
		"POST /rerank":                   parsed(rerank),
		"POST /v1/score":                 parsed(score),
		"POST /score":                    parsed(score),
		"POST /v1/audio/transcriptions":  transcribe,
		"POST /tokenize":                 parsed(tokenize),
		"POST /detokenize":               parsed(detokenize),
	} {
		mux.HandleFunc(path, e.handler(f, true))
	}
	if e.cfg.RuntimeLoRA {
		mux.HandleFunc("POST /v1/load_lora_adapter", e.handler(parsed(loadAdapter), false))
		mux.HandleFunc("POST /v1/unload_lora_adapter", e.handler(parsed(unloadAdapter), false))
	}
	for path, f := range map[string]endpoint{
		"GET /v1/models":            models,
		"GET /v1/responses/{id}":    getResponse,
		"DELETE /v1/responses/{id}": deleteResponse,
		"POST /reset_prefix_cache":  resetCache,
		"GET /health":               health,
		"GET /ping":                 health,
		"GET /version":              versions,
		"GET /load":                 serverLoad,
		"GET /server_info":          serverInfo,
		"GET /metrics":              metricsPage,
		"/":                         unknownPath,
	} {
		mux.HandleFunc(path, e.handler(f, false))
	}
	mux.HandleFunc("GET /sim/stats", e.serveStats)
	mux.HandleFunc("POST /sim/fault", e.serveFault)
	mux.HandleFunc("DELETE /sim/fault", e.serveFault)
	return mux
}

func unknownPath(c *call) error {
	return c.json(http.StatusNotFound, map[string]string{"detail": "Not Found"})
}

func health(c *call) error {
	c.w.WriteHeader(http.StatusOK)
	return nil
}

func versions(c *call) error { return c.answer(map[string]string{"version": version}) }

func serverLoad(c *call) error {
	load := int64(0)
	for _, r := range c.core.ranks {
		load += r.meters.running.Load() + r.meters.waiting.Load()
	}
	return c.answer(map[string]int64{"server_load": load})
}

// resetCache forgets all blocks, unless one is in use, like vLLM. The events of the next step
// announce the reset.
func resetCache(c *call) error {
	for _, r := range c.core.ranks {
		r.sched.reset()
	}
	c.w.WriteHeader(http.StatusOK)
	return nil
}

type modelCard struct {
	ID         string       `json:"id"`
	Object     string       `json:"object"`
	Created    int64        `json:"created"`
	OwnedBy    string       `json:"owned_by"`
	Root       string       `json:"root"`
	Parent     *string      `json:"parent"`
	MaxTokens  *int         `json:"max_model_len"`
	Permission []permission `json:"permission"`
}

type permission struct {
	ID                 string  `json:"id"`
	Object             string  `json:"object"`
	Created            int64   `json:"created"`
	AllowCreateEngine  bool    `json:"allow_create_engine"`
	AllowSampling      bool    `json:"allow_sampling"`
	AllowLogprobs      bool    `json:"allow_logprobs"`
	AllowSearchIndices bool    `json:"allow_search_indices"`
	AllowView          bool    `json:"allow_view"`
	AllowFineTuning    bool    `json:"allow_fine_tuning"`
	Organization       string  `json:"organization"`
	Group              *string `json:"group"`
	IsBlocking         bool    `json:"is_blocking"`
}

func models(c *call) error {
	created := c.core.started().Unix()
	cards := make([]modelCard, 0, len(c.cfg.Models))
	card := func(id, root string) *modelCard {
		cards = append(cards, modelCard{
			ID: id, Object: "model", Created: created, OwnedBy: c.cfg.Connector.owner(), Root: root,
			Permission: []permission{{
				ID: fmt.Sprintf("modelperm-%d", len(cards)), Object: "model_permission", Created: created,
				AllowSampling: true, AllowLogprobs: true, AllowView: true, Organization: "*",
			}},
		})
		return &cards[len(cards)-1]
	}
	for _, m := range c.cfg.Models {
		card(m, c.cfg.Models[0]).MaxTokens = &c.cfg.MaxModelTokens
	}
	for _, a := range c.core.loras.all() {
		card(a.Name, a.Path).Parent = &c.cfg.Models[0]
	}
	return c.answer(map[string]any{"object": "list", "data": cards})
}

// newID returns an id that is unique among engines with different names, and repeatable between
// runs.
func (e *Engine) newID(prefix string) string {
	name := fnv.New64a()
	name.Write([]byte(e.cfg.ID))
	return fmt.Sprintf("%s%016x", prefix, mix(e.cfg.Seed^name.Sum64()^mix(e.ids.Add(1))))
}

// quote returns s as a JSON string.
func quote(s string) string { return string(appendQuoted(nil, s)) }

// appendQuoted appends s as a JSON string.
func appendQuoted(b []byte, s string) []byte {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == '"' || s[i] == '\\' || s[i] >= utf8.RuneSelf {
			return appendJSON(b, s)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// appendJSON appends doc, which has only plain values and so always marshals.
func appendJSON(b []byte, doc any) []byte {
	text, err := json.Marshal(doc)
	if err != nil {
		return append(b, "null"...)
	}
	return append(b, text...)
}

// appendOptional appends s as a JSON string, or null if s is empty.
func appendOptional(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendQuoted(b, s)
}
