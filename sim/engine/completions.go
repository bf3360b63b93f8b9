package engine

import "strconv"

type completionRequest struct {
	sampling
	Prompt   prompts `json:"prompt"`
	Logprobs *int    `json:"logprobs"`
}

func completions(c *call, q *completionRequest) error {
	if err := c.forbidOthers(); err != nil {
		return err
	}
	if len(q.Prompt) == 0 {
		return badRequest("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
	}
	q.ReturnTokens = q.ReturnTokens && !c.cfg.OmitTokenIDs
	if q.MaxTokens == nil {
		q.MaxTokens = new(16) // the API's default
	}
	a := &completionAnswer{reply: c.reply("cmpl-", q.Model), q: q}
	var err error
	if a.g, err = c.generate(&q.sampling, "", q.Prompt...); err != nil {
		return err
	}
	if q.Stream {
		return a.stream()
	}
	return a.whole()
}

// completionAnswer writes one completion for any number of prompts.
type completionAnswer struct {
	reply
	q *completionRequest
	g *generation
}

func (a *completionAnswer) stream() error {
	a.begin("text_completion")
	if err := a.follow(a.g, a.chunks); err != nil {
		return err
	}
	return a.end(&a.q.sampling, a.usage(a.g))
}

func (a *completionAnswer) chunks(i, from, to int, last bool) {
	o := &a.g.seqs[i].output
	for n := from; n < to; n++ {
		b := append(a.out, a.open...)
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(i), 10)
		b = append(b, `,"text":`...)
		b = appendQuoted(b, o.text(n))
		b = append(b, `,"logprobs":`...)
		b = a.appendLogprobs(b, o, n)
		b = append(b, `,"finish_reason":`...)
		if last && n == to-1 {
			b = appendQuoted(b, o.reason)
		} else {
			b = append(b, `null`...)
		}
		b = append(b, `,"stop_reason":`...)
		b = appendOptional(b, o.stopReason)
		b = append(b, `,"prompt_token_ids":`...)
		if n == 0 {
			b = a.q.appendIDs(b, a.g.seqs[i].prompt)
		} else {
			b = append(b, `null`...)
		}
		a.out = append(a.q.appendID(append(b, `,"token_ids":`...), o, n), "}]}\n\n"...)
	}
}

func (a *completionAnswer) appendLogprobs(b []byte, o *output, n int) []byte {
	if a.q.Logprobs == nil {
		return append(b, `null`...)
	}
	return appendJSON(b, textLogprobsOf(o, n, n+1, *a.q.Logprobs))
}

// textLogprobs is the completion API's form of log probabilities.
type textLogprobs struct {
	TextOffset    []int                `json:"text_offset"`
	TokenLogprobs []float64            `json:"token_logprobs"`
	Tokens        []string             `json:"tokens"`
	TopLogprobs   []map[string]float64 `json:"top_logprobs"`
}

func textLogprobsOf(o *output, from, to, top int) *textLogprobs {
	t := &textLogprobs{}
	for i := from; i < to; i++ {
		t.TextOffset = append(t.TextOffset, i*tokenBytes)
		t.Tokens = append(t.Tokens, o.word(i))
		t.TokenLogprobs = append(t.TokenLogprobs, o.logprob(i, 0))
		ranks := map[string]float64{o.word(i): o.logprob(i, 0)}
		for r := 1; r < top; r++ {
			lp := o.ranked(i, r)
			ranks[lp.Token] = lp.Logprob
		}
		t.TopLogprobs = append(t.TopLogprobs, ranks)
	}
	return t
}

func (a *completionAnswer) whole() error {
	if err := a.follow(a.g, quiet); err != nil {
		return err
	}
	doc := textCompletion{
		ID: a.id, Object: "text_completion", Created: a.created, Model: a.model, Fingerprint: fingerprint,
		Usage: a.usage(a.g), KVTransfer: a.kvAnswer(a.g),
	}
	if context := a.contextAnswer(&a.q.sampling, a.g); context != nil {
		doc.PromptTokenIDs = a.g.seqs[0].prompt
	}
	for i, q := range a.g.seqs {
		o := &q.output
		ch := textChoice{
			Index: i, Text: o.whole(), FinishReason: o.reason, PromptTokenIDs: a.q.shown(q.prompt, nil),
		}
		if i == 0 {
			ch.Disaggregated = a.contextAnswer(&a.q.sampling, a.g)
		}
		if a.q.ReturnTokens {
			ch.TokenIDs = o.tokens()
		}
		if o.stopReason != "" {
			ch.StopReason = &o.stopReason
		}
		if a.q.Logprobs != nil {
			ch.Logprobs = textLogprobsOf(o, 0, o.limit, *a.q.Logprobs)
		}
		doc.Choices = append(doc.Choices, ch)
	}
	return a.answer(doc)
}

type textCompletion struct {
	ID          string       `json:"id"`
	Object      string       `json:"object"`
	Created     int64        `json:"created"`
	Model       string       `json:"model"`
	Choices     []textChoice `json:"choices"`
	ServiceTier *string      `json:"service_tier"`
	Fingerprint string       `json:"system_fingerprint"`
	Usage       usage        `json:"usage"`
	KVTransfer  any          `json:"kv_transfer_params"`
	ECTransfer  *struct{}    `json:"ec_transfer_params"`
	Metrics     *struct{}    `json:"metrics"`

	PromptTokenIDs []uint32 `json:"prompt_token_ids,omitempty"` // TensorRT-LLM's
}

type textChoice struct {
	Index          int           `json:"index"`
	Text           string        `json:"text"`
	Logprobs       *textLogprobs `json:"logprobs"`
	FinishReason   string        `json:"finish_reason"`
	StopReason     *string       `json:"stop_reason"`
	TokenIDs       []uint32      `json:"token_ids"`
	PromptLogprobs *struct{}     `json:"prompt_logprobs"`
	PromptTokenIDs []uint32      `json:"prompt_token_ids"`
	RoutedExperts  *struct{}     `json:"routed_experts"`

	Disaggregated *disaggregated `json:"disaggregated_params,omitempty"` // TensorRT-LLM's
}
