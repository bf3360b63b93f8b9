package tokens

import (
	"errors"

	"github.com/cespare/xxhash/v2"
)

// Set are the models whose prompts are tokenised. It is safe for concurrent use.
type Set struct {
	models map[string]*Model // by the name that clients use
	cache  *Cache
	most   int
}

// NewSet makes a set that remembers ids in about that many bytes, and takes bodies and prompts of
// at most as many.
func NewSet(models map[string]*Model, cache, most int) *Set {
	return &Set{models: models, cache: NewCache(cache), most: most}
}

// Outcome says what came of a prompt, in a word as the metrics have it.
type Outcome string

// The outcomes.
const (
	Exact  Outcome = "exact"
	Large  Outcome = "large"  // more bytes than are tokenised, or a word of more than 4 KiB
	Media  Outcome = "media"  // images and the like
	Form   Outcome = "form"   // content of a form that engines differ in
	Option Outcome = "option" // an option whose effect is not followed
	// the template refused it, it cannot be rendered exactly, or the engine does not use it
	Template Outcome = "template"
)

// Outcomes are all of them.
var Outcomes = []Outcome{Exact, Large, Media, Form, Option, Template}

// Result is a prompt's ids.
type Result struct {
	Outcome Outcome
	IDs     []uint32 // appended to what was given
	Turn    uint64   // a hash of what the conversation begins with, the same in every router; 0 for a completion
	Bytes   int      // of the prompt
	Encoded int      // of them, those that were not remembered
}

// Has tells whether the prompts of that model are tokenised.
func (s *Set) Has(model string) bool { return s != nil && s.models[model] != nil }

// Make makes the ids of a body for a model that the set has, and appends them to ids.
func (s *Set) Make(model string, api API, body []byte, ids []uint32) Result {
	r := Result{IDs: ids, Outcome: Exact}
	if len(body) > s.most {
		r.Outcome = Large
		return r
	}
	m := s.models[model]
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
		if p.Turn != "" {
			r.Turn = xxhash.Sum64String(p.Turn)
		}
		r.Bytes = len(p.Text)
		var ok bool
		if r.IDs, r.Encoded, ok = s.cache.Encode(m.tokenizer, ids, p.Text, p.Special); !ok {
			r.Outcome, r.IDs = Large, ids
		}
	}
	return r
}
