package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// fingerprint stands in for vLLM's version and build.
const fingerprint = "vllm-" + version + "-sim"

type chatRequest struct {
	sampling
	Messages       []message       `json:"messages"`
	MaxCompletion  *int            `json:"max_completion_tokens"`
	Logprobs       bool            `json:"logprobs"`
	TopLogprobs    int             `json:"top_logprobs"`
	Tools          json.RawMessage `json:"tools"`
	ToolChoice     json.RawMessage `json:"tool_choice"`
	ResponseFormat *responseFormat `json:"response_format"`
	GenerationMark *bool           `json:"add_generation_prompt"`
	Continue       bool            `json:"continue_final_message"`
	InputIDs       []uint32        `json:"input_ids"`        // SGLang's
	PromptIDs      []uint32        `json:"prompt_token_ids"` // TensorRT-LLM's
}

func chat(c *call, q *chatRequest) error {
	if len(q.Messages) == 0 {
		return badRequest("[{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}]", "messages")
	}
	if q.MaxCompletion != nil {
		q.MaxTokens = q.MaxCompletion
	}
	q.ReturnTokens = q.ReturnTokens && !c.cfg.OmitTokenIDs
	if err := errors.Join(c.forbidOthers(), q.checkLogprobs()); err != nil {
		return err
	}
	if c.cfg.Connector == ConnectorSGLang && q.Continue {
		q.GenerationMark = new(false) // SGLang looks at continue_final_message alone
	}
	d, err := q.dialogue()
	if err != nil {
		return err
	}
	a := &chatAnswer{reply: c.reply("chatcmpl-", q.Model), q: q}
	if a.g, a.tool, err = c.begin(d); err != nil {
		return err
	}
	if q.Stream {
		return a.stream()
	}
	return a.whole()
}

// maxTopLogprobs is vLLM's default for --max-logprobs.
const maxTopLogprobs = 20

func (q *chatRequest) checkLogprobs() error {
	switch {
	case q.TopLogprobs != 0 && !q.Logprobs:
		return badRequest("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
	case q.TopLogprobs < 0 || q.TopLogprobs > maxTopLogprobs:
		return badRequest(fmt.Sprintf("Requested sample logprobs of %d, which is greater than max allowed: %d",
			q.TopLogprobs, maxTopLogprobs), "logprobs")
	}
	return nil
}

func (q *chatRequest) dialogue() (*dialogue, error) {
	d := &dialogue{sampling: q.sampling, tools: q.Tools, format: q.ResponseFormat, messages: q.Messages}
	d.noMark, d.open, d.ids = q.GenerationMark != nil && !*q.GenerationMark, q.Continue, q.InputIDs
	if d.open && !d.noMark {
		return nil, badRequest("Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
			"continue_final_message")
	}
	switch {
	case q.KVTransfer != nil && len(q.KVTransfer.ids) > 0:
		d.ids = q.KVTransfer.ids
	case len(q.PromptIDs) > 0:
		d.ids = q.PromptIDs
	}
	if len(q.Tools) > 0 && json.Unmarshal(q.Tools, &d.specs) != nil {
		return nil, badRequest("Input should be a valid list", "tools")
	}
	var named toolSpec
	if json.Unmarshal(q.ToolChoice, &d.choice) != nil && json.Unmarshal(q.ToolChoice, &named) == nil {
		d.choice = named.Function.Name
	}
	return d, nil
}

// chatAnswer writes one chat completion.
type chatAnswer struct {
	reply
	q    *chatRequest
	tool *toolCall // called instead of an answer in text
	g    *generation
}

// reply is the common part of all answers of the completion APIs.
type reply struct {
	*call
	model   string
	created int64

	open string // the beginning of every chunk
}

// reply chooses the answer's id: a prefix and the request's x-request-id, as in vLLM, or a new one.
func (c *call) reply(prefix, model string) reply {
	if asked := c.r.Header.Get("X-Request-Id"); asked != "" {
		c.id = prefix + asked
	} else {
		c.id = c.newID(prefix)
	}
	return reply{call: c, model: model, created: time.Now().Unix()}
}

// begin sends the head of a stream of objects of this name.
func (r *reply) begin(object string) {
	r.open = fmt.Sprintf(`data: {"id":%s,"object":%q,"created":%d,"model":%s,"choices":[`, quote(r.id), object,
		r.created, quote(r.model))
	r.call.stream()
}

// end ends the stream, with the usage if the request asks for it.
func (r *reply) end(s *sampling, u usage) error {
	if s.wantsUsage() {
		r.out = append(r.out, r.open...)
		r.out = append(r.out, `],"usage":`+u.inStream()+`,"system_fingerprint":"`+fingerprint+"\"}\n\n"...)
	}
	r.out = append(r.out, "data: [DONE]\n\n"...)
	return r.push()
}

// reason returns a choice's finish reason.
func (a *chatAnswer) reason(i int) string {
	r := a.g.seqs[i].output.reason
	if a.tool != nil && r == "stop" {
		return "tool_calls"
	}
	return r
}

// stream sends chunks as tokens come.
func (a *chatAnswer) stream() error {
	a.begin("chat.completion.chunk")
	if err := a.follow(a.g, a.chunks); err != nil {
		return err
	}
	return a.end(&a.q.sampling, a.usage(a.g))
}

// chunks appends the role first, then one event for each new token of choice i.
func (a *chatAnswer) chunks(i, from, to int, last bool) {
	if from == 0 {
		a.out = append(a.out, a.open...)
		a.out = fmt.Appendf(a.out,
			`{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],`+
				`"prompt_token_ids":`, i)
		a.out = append(a.q.appendIDs(a.out, a.g.seqs[i].prompt), `,"prompt_text":null}`+"\n\n"...)
		if a.tool != nil {
			a.toolHead(i)
		}
	}
	for n := from; n < to; n++ {
		a.chunk(i, n, last && n == to-1)
	}
}

// chunk appends the event of token n of choice i.
func (a *chatAnswer) chunk(i, n int, last bool) {
	o := &a.g.seqs[i].output
	b := append(a.out, a.open...)
	b = append(b, `{"index":`...)
	b = strconv.AppendInt(b, int64(i), 10)
	if a.tool != nil {
		b = append(b, `,"delta":{"tool_calls":[{"index":0,"function":{"arguments":`...)
		b = appendQuoted(b, o.text(n))
		b = append(b, `}}]},"logprobs":`...)
	} else {
		b = append(b, `,"delta":{"content":`...)
		b = appendQuoted(b, o.text(n))
		b = append(b, `},"logprobs":`...)
	}
	b = a.appendLogprobs(b, o, n)
	b = append(b, `,"finish_reason":`...)
	if last {
		b = appendQuoted(b, a.reason(i))
		b = append(b, `,"stop_reason":`...)
		b = appendOptional(b, o.stopReason)
	} else {
		b = append(b, `null`...)
	}
	a.out = append(a.q.appendID(append(b, `,"token_ids":`...), o, n), "}]}\n\n"...)
}

// toolHead appends the event that opens the tool call of choice i.
func (a *chatAnswer) toolHead(i int) {
	a.out = append(a.out, a.open...)
	a.out = fmt.Appendf(a.out,
		`{"index":%d,"delta":{"tool_calls":[{"id":%s,"type":"function","index":0,"function":{"name":%s,"arguments":""}}]},`+
			`"logprobs":null,"finish_reason":null,"token_ids":null}]}`+"\n\n",
		i, quote(a.callID(i)), quote(a.tool.name))
}

func (a *chatAnswer) callID(i int) string { return fmt.Sprintf("chatcmpl-tool-%s-%d", a.id[9:], i) }

func (a *chatAnswer) appendLogprobs(b []byte, o *output, n int) []byte {
	if !a.q.Logprobs {
		return append(b, `null`...)
	}
	return appendJSON(b, chatLogprobs{o.logprobs(n, n+1, a.q.TopLogprobs)})
}

type chatLogprobs struct {
	Content []placeLogprob `json:"content"`
}

// whole answers when all choices are complete.
func (a *chatAnswer) whole() error {
	if err := a.follow(a.g, quiet); err != nil {
		return err
	}
	choices := make([]chatChoice, 0, len(a.g.seqs))
	for i := range a.g.seqs {
		choices = append(choices, a.choice(i))
	}
	return a.answer(chatCompletion{
		PromptTokenIDs: a.q.shown(a.g.seqs[0].prompt, a.contextAnswer(&a.q.sampling, a.g)),
		ID:             a.id, Object: "chat.completion", Created: a.created, Model: a.model,
		Choices: choices, Fingerprint: fingerprint, Usage: a.usage(a.g),
		KVTransfer: a.kvAnswer(a.g),
	})
}

func (a *chatAnswer) choice(i int) chatChoice {
	o := &a.g.seqs[i].output
	m := chatMessage{Role: "assistant", ToolCalls: []toolCallJSON{}}
	if a.tool != nil {
		m.ToolCalls = append(m.ToolCalls, a.tool.json(a.callID(i), o.whole()))
	} else {
		text := o.whole()
		m.Content = &text
	}
	ch := chatChoice{Index: i, Message: m, FinishReason: a.reason(i)}
	if i == 0 {
		ch.Disaggregated = a.contextAnswer(&a.q.sampling, a.g)
	}
	if a.q.ReturnTokens {
		ch.TokenIDs = o.tokens()
	}
	if o.stopReason != "" {
		ch.StopReason = &o.stopReason
	}
	if a.q.Logprobs {
		ch.Logprobs = &chatLogprobs{o.logprobs(0, o.limit, a.q.TopLogprobs)}
	}
	return ch
}

// chatCompletion is the answer to a chat request without a stream. Fields without a simulated value
// are null, as in vLLM.
type chatCompletion struct {
	ID             string       `json:"id"`
	Object         string       `json:"object"`
	Created        int64        `json:"created"`
	Model          string       `json:"model"`
	Choices        []chatChoice `json:"choices"`
	ServiceTier    *string      `json:"service_tier"`
	Fingerprint    string       `json:"system_fingerprint"`
	Usage          usage        `json:"usage"`
	PromptLogprobs *struct{}    `json:"prompt_logprobs"`
	PromptTokenIDs []uint32     `json:"prompt_token_ids"`
	PromptText     *string      `json:"prompt_text"`
	KVTransfer     any          `json:"kv_transfer_params"`
	ECTransfer     *struct{}    `json:"ec_transfer_params"`
	Metrics        *struct{}    `json:"metrics"`
}

type chatChoice struct {
	Index         int           `json:"index"`
	Message       chatMessage   `json:"message"`
	Logprobs      *chatLogprobs `json:"logprobs"`
	FinishReason  string        `json:"finish_reason"`
	StopReason    *string       `json:"stop_reason"`
	TokenIDs      []uint32      `json:"token_ids"`
	RoutedExperts *struct{}     `json:"routed_experts"`

	Disaggregated *disaggregated `json:"disaggregated_params,omitempty"` // TensorRT-LLM's
}

type chatMessage struct {
	Role         string         `json:"role"`
	Content      *string        `json:"content"`
	Refusal      *string        `json:"refusal"`
	Annotations  *struct{}      `json:"annotations"`
	Audio        *struct{}      `json:"audio"`
	FunctionCall *struct{}      `json:"function_call"`
	ToolCalls    []toolCallJSON `json:"tool_calls,omitempty"`
	Reasoning    *string        `json:"reasoning"`
}
