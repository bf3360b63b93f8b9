package dispatch

import (
	"time"

	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/tokens"
)

// tokenised are the APIs whose prompts a model's tokenizer can make.
var tokenised = map[scan.API]tokens.API{scan.Completions: tokens.Completions, scan.Chat: tokens.Chat, scan.Responses: tokens.Responses, scan.Messages: tokens.Messages}

// exactly makes the job's chain one of the model's own tokens: those that the client gave, or those that the model's tokenizer
// makes of the prompt, where one is configured. It reports whether it did; begin follows otherwise.
func (d *Dispatcher) exactly(j *Job, seed prefix.Digest) bool {
	if len(j.Scan.Tokens) > 0 {
		j.exact = true // begin makes the chain of them
		return false
	}
	api, ok := tokenised[j.API]
	if !ok || !d.tokens.Has(j.model.name) {
		return false
	}
	start := time.Now()
	r := d.tokens.Make(j.model.name, api, j.Body, j.ids[:0])
	j.ids = r.IDs
	d.metrics.Tokenised.WithLabelValues(string(r.Outcome)).Inc()
	if r.Outcome != tokens.Exact {
		return false
	}
	d.metrics.TokenSeconds.Observe(time.Since(start).Seconds())
	d.metrics.TokenBytes.Add(float64(r.Encoded))
	d.metrics.TokensKnown.Add(float64(r.Bytes - r.Encoded))
	j.exact, j.turn, j.from, j.text, j.remembered = true, r.Turn, 0, nil, true
	j.Scan.FirstTurn = len(r.IDs) / prefix.BlockTokens * prefix.BlockBytes
	j.chain.Reset(seed, nil, j.ids)
	return true
}

// forgetTokens keeps a buffer of moderate size.
func (j *Job) forgetTokens() {
	const keep = 1 << 16
	if j.ids = j.ids[:0]; cap(j.ids) > keep {
		j.ids = nil
	}
	j.exact, j.turn = false, 0
}
