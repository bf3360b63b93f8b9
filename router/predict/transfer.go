package predict

import "sync"

// Transfer is the time that the KV blocks of a prompt take from the node that has computed them to
// the node that answers. The zero value knows nothing yet. Transfer is safe for concurrent use.
type Transfer struct {
	mu  sync.Mutex
	per float64 // seconds of a token, as learned
	n   int     // observations
}

const (
	// transferStart is the time of a token before the first observation: 128 KiB at 25 GB/s.
	transferStart = 5e-6
	transferGain  = 1.0 / 16 // weight of an observation after the first ones
	transferMost  = 1e-2     // seconds of a token; a longer one has another cause
)

// Expected returns the seconds for a prompt of this many tokens.
func (t *Transfer) Expected(tokens float64) float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == 0 {
		return transferStart * tokens
	}
	return t.per * tokens
}

// Learn learns from a first token that came seconds later than the answering node alone explains.
func (t *Transfer) Learn(tokens, seconds float64) {
	if !plausible(tokens, seconds) || tokens < 1 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
	t.per += (min(seconds/tokens, transferMost) - t.per) * max(transferGain, 1/float64(t.n))
}
