package engine

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"
)

// handover says what a sequence has to do with another engine. The zero value is for a request of
// one leg.
type handover struct {
	lendAs string       // name under which another engine may read the blocks
	meet   bool         // that engine must wait for them before the prompt is computed
	from   *blockSource // the engine that has the blocks

	stores   bool          // the blocks go to the shelf
	shelved  int           // tokens whose blocks another engine puts there
	patience time.Duration // for which they are waited for
}

// blockSource is where the blocks of a prompt are.
type blockSource struct {
	addr  string // host:port of a side channel; "": unusable
	query blockRequest
	// cached returns what the answer calls cached tokens.
	cached func(p *lentPrompt) int
}

// lent says whether q's blocks are kept for another engine after its end.
func (q *sequence) lent() bool {
	return q.lendAs != "" && (q.output.reason == "length" || q.output.reason == notFinished)
}

// handover returns the part of sequence k of a request.
func (c *call) handover(s *sampling, k int) (handover, error) {
	switch c.cfg.Connector {
	case ConnectorNIXL:
		return c.nixl(s, k), nil
	case ConnectorMooncake:
		return c.mooncake(s, k)
	case ConnectorKVCached:
		return c.shelved(s, k), nil
	case ConnectorSGLang:
		return c.sglang(s, k)
	case ConnectorTRTLLM:
		return c.trtllm(s, k)
	}
	return handover{}, nil
}

// handOver waits for the readers of g's prompts and reads the blocks of other engines. It decides
// the answers again that are made from blocks of another prompt.
func (c *call) handOver(g *generation) error {
	if g.over {
		return nil
	}
	g.over = true
	ctx, cancel := context.WithTimeout(c.r.Context(), c.cfg.PeerTimeout)
	defer cancel()
	errs := make([]error, len(g.seqs))
	var all sync.WaitGroup
	for k, h := range g.handovers {
		if h.meet || h.from != nil || h.shelved > 0 {
			all.Go(func() { errs[k] = c.exchange(ctx, g, k) })
		}
	}
	all.Wait()
	if c.r.Context().Err() != nil {
		return errGone
	}
	return errors.Join(errs...)
}

// exchange does the handover of sequence k.
func (c *call) exchange(ctx context.Context, g *generation, k int) error {
	h, q := &g.handovers[k], g.seqs[k]
	if h.shelved > 0 {
		if c.fetch(ctx, q, h); c.r.Context().Err() != nil {
			return errGone
		}
		return nil
	}
	if h.meet {
		if c.core.lender.meet(ctx, h.lendAs) {
			return nil
		}
		c.core.lender.lone.Add(1)
		return loadFailed()
	}
	p, err := c.load(ctx, h.from)
	if p == nil || err != nil {
		return err
	}
	q.received, q.cachedThere = true, h.from.cached(p)
	if slices.Equal(p.tokens, q.prompt) {
		return nil
	}
	c.core.lender.wrong.Add(1)
	q.output = c.output(g.sampling, g.rooms[k], k%g.choices, p.tokens, q.output.fixed)
	return nil
}

// load reads a prompt from another engine. load returns nil if this engine should compute the
// prompt.
func (c *call) load(ctx context.Context, from *blockSource) (*lentPrompt, error) {
	if !from.query.Wait {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, sideTimeout)
		defer cancel()
	}
	p, err := readBlocks(ctx, from.addr, from.query)
	lender := c.core.lender
	switch {
	case c.r.Context().Err() != nil:
		return nil, errGone
	case errors.Is(err, errNoBlocks) && c.cfg.LoadFailure == LoadStale:
		return &lentPrompt{tokens: appendTokens(nil, "stale "+from.query.Name)}, nil
	case err != nil:
		lender.lost.Add(1)
		if c.cfg.LoadFailure == LoadRecompute {
			return nil, nil
		}
		return nil, loadFailed()
	}
	seconds := float64(len(p.tokens)) / c.cfg.TransferTokensPerSecond / c.cfg.Speed
	return p, c.wait(time.Duration(seconds * float64(time.Second)))
}

func loadFailed() error {
	return &apiError{http.StatusInternalServerError, "InternalServerError", "Internal server error", ""}
}

// early says whether the handover comes before the head of a stream.
func (c *call) early(s *sampling) bool { return !s.Stream || c.cfg.LoadFailure != LoadFailInStream }

// Leg names the part of a request that an engine answers, for faults.
type Leg string

// These are the legs. A whole request has one leg.
const (
	LegAny     Leg = ""
	LegWhole   Leg = "whole"
	LegPrefill Leg = "prefill"
	LegDecode  Leg = "decode"
)

// leg returns the leg of the request.
func (c *call) leg() Leg {
	var s sampling
	if json.Unmarshal(c.body, &s) != nil {
		return LegWhole
	}
	prefill, decode := false, false
	switch kv, d := s.KVTransfer, s.Disaggregated; c.cfg.Connector {
	case ConnectorNIXL, ConnectorMooncake:
		prefill, decode = kv != nil && kv.remoteDecode, kv != nil && kv.remotePrefill
	case ConnectorKVCached:
		prefill, decode = kv != nil && kv.store, kv != nil && kv.stored > 0
	case ConnectorSGLang:
		room := s.room(0) != nil
		prefill, decode = room && c.cfg.Role == RolePrefill, room && c.cfg.Role == RoleDecode
	case ConnectorTRTLLM:
		prefill, decode = d != nil && d.Type == contextOnly, d != nil && d.Type == generationOnly
	}
	switch {
	case prefill:
		return LegPrefill
	case decode:
		return LegDecode
	}
	return LegWhole
}
