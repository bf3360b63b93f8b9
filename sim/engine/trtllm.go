package engine

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// notFinished is the finish reason of TensorRT-LLM's context leg if the answer goes on.
const notFinished = "not_finished"

// These are the kinds and the style of TensorRT-LLM's legs.
const (
	contextOnly     = "context_only"
	generationOnly  = "generation_only"
	generationFirst = 1 // schedule_style; 0 is context first
)

// disaggregated are the disaggregated_params of a request to TensorRT-LLM and of its context leg's
// answer, in its order. The answer has all members.
type disaggregated struct {
	Type          string           `json:"request_type"`
	FirstTokens   []uint32         `json:"first_gen_tokens"`
	FirstLogProbs *json.RawMessage `json:"first_gen_log_probs"`
	FirstLogits   *json.RawMessage `json:"first_gen_logits"`
	ContextID     *uint64          `json:"ctx_request_id"`
	State         *string          `json:"encoded_opaque_state"`
	Draft         []uint32         `json:"draft_tokens"`
	ID            *uint64          `json:"disagg_request_id"`
	Rank          *int             `json:"ctx_dp_rank"`
	Endpoint      *string          `json:"ctx_info_endpoint"`
	Style         *int             `json:"schedule_style"`
	ContextUsage  *usage           `json:"ctx_usage"`
}

func (d *disaggregated) generationFirst() bool { return d.Style != nil && *d.Style == generationFirst }

// opaque is what the simulated engine has in encoded_opaque_state.
type opaque struct {
	Addr string `json:"addr"`
}

// unknownToTRTLLM are fields of other engines. TensorRT-LLM forbids fields that it does not know.
var unknownToTRTLLM = []string{"kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room",
	"routed_dp_rank", "disagg_prefill_dp_rank", "return_token_ids", "continue_final_message", "input_ids"}

// forbidOthers refuses a body with fields of other engines, as TensorRT-LLM does.
func (c *call) forbidOthers() error {
	if c.cfg.Connector != ConnectorTRTLLM {
		return nil
	}
	var body map[string]json.RawMessage
	if json.Unmarshal(c.body, &body) != nil {
		return nil // the endpoint says so
	}
	for _, name := range unknownToTRTLLM {
		if _, there := body[name]; there {
			return badRequest("[{'type': 'extra_forbidden', 'loc': ('body', '"+name+
				"'), 'msg': 'Extra inputs are not permitted'}]", name)
		}
	}
	return nil
}

// trtllm returns the handover of TensorRT-LLM.
func (c *call) trtllm(s *sampling, k int) (h handover, err error) {
	d := s.Disaggregated
	switch {
	case d == nil:
		return h, nil
	case k > 0:
		return h, badRequest("disaggregated_params need one prompt and one choice", "disaggregated_params")
	case d.Type == contextOnly:
		id := d.ID
		if id == nil {
			id = new(mix(c.ids.Add(1)) >> 11)
		}
		d.ContextID = id
		return handover{lendAs: contextName(*id), meet: d.generationFirst()}, nil
	case d.Type != generationOnly:
		return h, badRequest("Invalid request type: "+d.Type, "disaggregated_params")
	case d.ContextID == nil:
		return h, badRequest("ctx_request_id is missing", "disaggregated_params")
	}
	h.from = &blockSource{
		addr:   d.address(),
		query:  blockRequest{Name: contextName(*d.ContextID), Wait: d.generationFirst()},
		cached: func(*lentPrompt) int { return 0 },
	}
	if u := d.ContextUsage; u != nil && u.Details != nil {
		h.from.cached = func(*lentPrompt) int { return u.Details.Cached }
	}
	return h, nil
}

func contextName(id uint64) string { return "ctx/" + strconv.FormatUint(id, 10) }

// address returns where the blocks are, or "".
func (d *disaggregated) address() string {
	var state opaque
	if d.State != nil {
		if b, err := base64.StdEncoding.DecodeString(*d.State); err == nil {
			_ = json.Unmarshal(b, &state)
		}
	}
	if d.Endpoint != nil {
		return strings.TrimPrefix(*d.Endpoint, "tcp://")
	}
	return state.Addr
}

// onlyContext makes the answer of a context leg its first token, whatever the request asks for.
func (c *call) onlyContext(s *sampling) *sampling {
	d := s.Disaggregated
	context := c.cfg.Connector == ConnectorTRTLLM && d != nil && d.Type == contextOnly
	if !context && (c.cfg.Connector != ConnectorSGLang || c.cfg.Role != RolePrefill) {
		return s
	}
	one := *s
	one.MaxTokens, one.MinTokens, one.whole = new(1), 0, s
	return &one
}

// goesOn says whether the answer would have more than its first token.
func (c *call) goesOn(s *sampling, source []uint32, fixed string) bool {
	if s.MaxTokens != nil && *s.MaxTokens == 1 {
		return false
	}
	return c.cfg.Connector == ConnectorTRTLLM && c.natural(s, source, fixed) > 1
}

// contextAnswer returns the disaggregated_params of choice 0, or nil if this is no context leg.
func (c *call) contextAnswer(s *sampling, g *generation) *disaggregated {
	d, q := s.Disaggregated, g.seqs[0]
	if c.cfg.Connector != ConnectorTRTLLM || d == nil || d.Type != contextOnly || c.fault.NoTransfer {
		return nil
	}
	a := &disaggregated{
		Type: contextOnly, FirstTokens: q.output.tokens(), ContextID: d.ContextID, ID: d.ID, Rank: &c.rank.number,
		Endpoint: new("tcp://" + c.SideChannel()), Style: d.Style,
		State: new(base64.StdEncoding.EncodeToString(appendJSON(nil, opaque{c.SideChannel()}))),
	}
	return a
}

// serverInfo is TensorRT-LLM's /server_info, with the part that a router needs for generation
// first.
func serverInfo(c *call) error {
	if c.cfg.Connector != ConnectorTRTLLM {
		return unknownPath(c)
	}
	return c.json(http.StatusOK, fields{"disaggregated_params": fields{
		"ctx_dp_rank": 0, "ctx_info_endpoint": []string{"tcp://" + c.SideChannel()},
	}})
}
