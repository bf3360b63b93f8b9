package engine

import (
	"fmt"
	"slices"
	"strings"
)

// maxChoices bounds n, like vLLM's VLLM_MAX_N_SEQUENCES.
const maxChoices = 256

// sampling holds the parameters common to chat and completion requests.
type sampling struct {
	named
	Stream        bool           `json:"stream"`
	StreamOptions *streamOptions `json:"stream_options"`
	MaxTokens     *int           `json:"max_tokens"`
	N             *int           `json:"n"`
	Stop          texts          `json:"stop"`
	Seed          *int64         `json:"seed"`
	CacheSalt     string         `json:"cache_salt"`
	KVTransfer    *kvTransfer    `json:"kv_transfer_params"`
	MinTokens     int            `json:"min_tokens"`
	IgnoreEnd     bool           `json:"ignore_eos"`
	ReturnTokens  bool           `json:"return_token_ids"`
	Disaggregated *disaggregated `json:"disaggregated_params"`
	bootstrap

	whole *sampling // what a context leg leaves to the other one
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

func (s *sampling) wantsUsage() bool { return s.StreamOptions != nil && s.StreamOptions.IncludeUsage }

func (s *sampling) choices() int {
	if s.N == nil {
		return 1
	}
	return *s.N
}

// check refuses the parameters that vLLM refuses.
func (s *sampling) check() error {
	switch {
	case s.choices() < 1 || s.choices() > maxChoices:
		return badRequest(fmt.Sprintf("n must be between 1 and %d, got %d.", maxChoices, s.choices()), "n")
	case s.MaxTokens != nil && *s.MaxTokens < 1:
		return badRequest(fmt.Sprintf("max_tokens must be at least 1, got %d.", *s.MaxTokens), "max_tokens")
	case s.MinTokens < 0 || s.MaxTokens != nil && s.MinTokens > *s.MaxTokens:
		return badRequest(fmt.Sprintf("min_tokens must be greater than or equal to 0 and at most max_tokens, got %d.",
			s.MinTokens), "min_tokens")
	case s.StreamOptions != nil && !s.Stream:
		return badRequest("Stream options can only be defined when `stream=True`.", "stream_options")
	}
	return nil
}

// room returns how many tokens of the context are left for the answer to prompt.
func (c *call) room(s *sampling, prompt []uint32) (int, error) {
	room := c.cfg.MaxModelTokens - len(prompt)
	wanted := 1
	if s.MaxTokens != nil {
		wanted = *s.MaxTokens
	}
	if len(prompt) == 0 {
		return 0, badRequest("The decoder prompt cannot be empty", "prompt")
	}
	if wanted > room {
		return 0, badRequest(fmt.Sprintf("This model's maximum context length is %d tokens. However, you requested "+
			"%d output tokens "+
			"and your prompt contains %d input tokens. Please reduce the length of the input prompt or the number of "+
			"requested output tokens.",
			c.cfg.MaxModelTokens, wanted, len(prompt)), "input_tokens")
	}
	return room, nil
}

// voice returns the number that tells the words of engines, models and requested seeds apart.
func (c *Config) voice(s *sampling) uint64 {
	key := c.Seed
	if !slices.Contains(c.Models, s.Model) {
		for _, b := range []byte(s.Model) { // an adapter answers in its own words
			key = mix(key ^ uint64(b))
		}
	}
	if s.Seed != nil {
		key = mix(key ^ mix(uint64(*s.Seed)))
	}
	return key
}

// output decides choice number i after the tokens of source. room is the number of tokens left in
// the context.
func (c *call) output(s *sampling, room, i int, source []uint32, fixed string) output {
	natural, max := c.natural(s, source, fixed), room
	if s.MaxTokens != nil {
		max = *s.MaxTokens
		if !c.cfg.EndsItself && fixed == "" || s.IgnoreEnd && fixed == "" {
			natural = max
		}
	}
	o := output{
		limit: min(natural, max), reason: "stop", fixed: fixed, voice: c.cfg.voice(s) + uint64(i)<<32,
		before: len(source), last: source[len(source)-1],
	}
	if max < natural || fixed == "" && s.MaxTokens != nil && max == natural {
		o.reason = "length"
	}
	if s.whole != nil && c.goesOn(s.whole, source, fixed) {
		o.reason = notFinished
	}
	o.cut = o.limit * tokenBytes
	if o.limit == 0 { // the end itself is a token, without text
		o.limit = 1
	}
	if fixed == "" {
		state := o.voice
		for _, t := range source {
			state = after(state, t)
		}
		o.speak(state)
	}
	if c.cfg.Quality > 0 {
		o.judge(c.cfg.Quality, source)
	}
	o.stopAt(s.Stop, s.MinTokens)
	return o
}

// natural returns the number of tokens until the answer ends by itself. The tokens of the answer
// that source already has count.
func (c *call) natural(s *sampling, source []uint32, fixed string) int {
	if fixed != "" {
		return (len(fixed) + tokenBytes - 1) / tokenBytes
	}
	natural := c.cfg.OutputTokens
	if spoken := spokenIn(source, natural); spoken > 0 {
		natural -= spoken
	}
	return max(natural, s.MinTokens)
}

// usage holds the token counts of an answer. The details are null without
// --enable-prompt-tokens-details.
type usage struct {
	Prompt     int            `json:"prompt_tokens"`
	Total      int            `json:"total_tokens"`
	Completion int            `json:"completion_tokens"`
	Details    *promptDetails `json:"prompt_tokens_details"`
	Output     *struct{}      `json:"completion_tokens_details"`
}

type promptDetails struct {
	Cached     int  `json:"cached_tokens"`
	Created    int  `json:"created_cache_tokens"`
	Multimodal *int `json:"multimodal_tokens"`
}

// usage returns the token counts of a complete generation. A prompt counts once, as its first
// choice found it.
func (c *call) usage(g *generation) usage {
	var u usage
	var d promptDetails
	for i, q := range g.seqs {
		u.Completion += g.sent[i]
		if i%g.choices == 0 {
			u.Prompt += len(q.prompt)
			if q.received {
				d.Cached += q.cachedThere
				continue
			}
			cached := int(q.cached.Load())
			d.Cached += cached
			d.Created += len(q.prompt)/c.cfg.BlockTokens*c.cfg.BlockTokens - cached
		}
	}
	u.Total = u.Prompt + u.Completion
	if c.reportsCached() {
		u.Details = &d
	}
	return u
}

func (c *call) reportsCached() bool { return !c.cfg.OmitCachedTokens && !c.fault.NoCachedTokens }

// inStream writes the usage in the form of a stream's last chunk, without nulls.
func (u usage) inStream() string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d`, u.Prompt, u.Total, u.Completion)
	if u.Details != nil {
		fmt.Fprintf(&b, `,"prompt_tokens_details":{"cached_tokens":%d,"created_cache_tokens":%d}`, u.Details.Cached,
			u.Details.Created)
	}
	b.WriteByte('}')
	return b.String()
}

// logprob is one token's probability in the chat API's form.
type logprob struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

// placeLogprob is a generated token's probability, with those of the most probable tokens there.
type placeLogprob struct {
	logprob
	Top []logprob `json:"top_logprobs"`
}

// logprobs describes the tokens [from, to) of o, with top alternatives each.
func (o *output) logprobs(from, to, top int) []placeLogprob {
	list := make([]placeLogprob, 0, to-from)
	for i := from; i < to; i++ {
		lp := placeLogprob{o.ranked(i, 0), make([]logprob, 0, top)}
		for r := range top {
			lp.Top = append(lp.Top, o.ranked(i, r))
		}
		list = append(list, lp)
	}
	return list
}

// ranked returns the token of rank r at position i. Rank 0 is the generated one.
func (o *output) ranked(i, r int) logprob {
	word := o.word(i)
	if r > 0 {
		word = o.other(i, r)
	}
	lp := logprob{Token: word, Logprob: o.logprob(i, r), Bytes: make([]int, 0, len(word))}
	for _, b := range []byte(word) {
		lp.Bytes = append(lp.Bytes, int(b))
	}
	return lp
}

// other returns the word of rank r, which differs from the words of other ranks.
func (o *output) other(i, r int) string {
	pick := int(o.token(i) % uint32(len(words)))
	if o.fixed == "" {
		pick = int(o.picks[i])
	}
	others := len(words) - 1
	return words[(pick+1+(int(o.chance(i)%uint64(others))+r)%others)%len(words)]
}
