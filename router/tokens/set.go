package tokens

import (
	"errors"
	"sync/atomic"
)

// Set holds the models whose prompts are tokenised. Set is safe for concurrent use.
type Set struct {
	models atomic.Pointer[map[string]*Model] // by the clients' name
	cache  *Cache
	most   int
}

// NewSet makes a set. The set caches ids in about cache bytes. The set accepts bodies and prompts
// of at most most bytes.
func NewSet(models map[string]*Model, cache, most int) *Set {
	s := &Set{cache: NewCache(cache), most: most}
	s.Replace(models)
	return s
}

// Replace replaces the models. A prompt that is being made keeps its model.
func (s *Set) Replace(models map[string]*Model) { s.models.Store(&models) }

// model returns a model of the set, or nil.
func (s *Set) model(name string) *Model { return (*s.models.Load())[name] }

// Outcome is the result for a prompt, in the metrics' words.
type Outcome string

// These are the outcomes.
const (
	Exact  Outcome = "exact"
	Large  Outcome = "large"  // too many bytes, or a word of more than 4 KiB
	Media  Outcome = "media"  // the prompt has images or other media
	Form   Outcome = "form"   // the content has a form in which engines differ
	Option Outcome = "option" // the body sets an option with an unsupported effect
	// the template refused the chat, cannot be rendered exactly, or is not used by the engine
	Template Outcome = "template"
)

// Result holds the ids of a prompt.
type Result struct {
	Outcome Outcome
	IDs     []uint32 // appended to the given ids
	Turn    uint64   // hash of the beginning of the conversation, the same in every router; 0 for a completion
	Bytes   int      // length of the prompt
	Encoded int      // bytes that were not in the cache
}

// Has says whether the prompts of the model are tokenised.
func (s *Set) Has(model string) bool { return s != nil && s.model(model) != nil }

// Make appends the ids of a body to ids. Texts that only clients of other spaces have sent count as
// unknown. A model that has left the set since Has has the outcome Option.
func (s *Set) Make(model string, api API, body []byte, space uint64, ids []uint32) Result {
	r := Result{IDs: ids, Outcome: Exact}
	if len(body) > s.most {
		r.Outcome = Large
		return r
	}
	m := s.model(model)
	if m == nil {
		r.Outcome = Option
		return r
	}
	p, err := m.Prompt(api, body, s.most)
	switch {
	case errors.Is(err, ErrMedia):
		r.Outcome = Media
	case errors.Is(err, ErrForm):
		r.Outcome = Form
	case errors.Is(err, ErrOption), errors.Is(err, ErrBody):
		r.Outcome = Option
	case err != nil:
		r.Outcome = Template
	default:
		r.Turn, r.Bytes = p.Turn, len(p.Text)
		var ok bool
		if r.IDs, r.Encoded, ok = s.cache.Encode(m.tokenizer, ids, p.Text, space, p.Special); !ok {
			r.Outcome, r.IDs = Large, ids
		}
	}
	return r
}
