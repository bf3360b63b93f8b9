package engine

import (
	"context"
	"net/http"
)

// generation holds the sequences of one request: for each prompt, one for each choice.
type generation struct {
	sampling  *sampling
	seqs      []*sequence
	handovers []handover // of seqs
	rooms     []int      // tokens of the context that are left for each answer
	over      bool       // the handovers are done
	choices   int        // of each prompt
	sent      []int
	wake      chan struct{}
}

// generate prepares the sequences for the prompts. A text forced by the request replaces generated
// words and ends by itself.
func (c *call) generate(s *sampling, forced string, prompts ...[]uint32) (*generation, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if err := c.moveToRank(s); err != nil {
		return nil, err
	}
	s = c.onlyContext(s)
	g := &generation{sampling: s, choices: s.choices(), wake: make(chan struct{}, 1)}
	for p, prompt := range prompts {
		room, err := c.room(s, prompt)
		if err != nil {
			return nil, err
		}
		for i := range g.choices {
			h, err := c.handover(s, p*g.choices+i)
			if err != nil {
				return nil, err
			}
			q := newSequence(prompt, c.output(s, room, i, prompt, forced), c.cfg.BlockTokens, s.CacheSalt, g.wake)
			q.stores = h.stores
			q.lendAs, q.lost = h.lendAs, c.fault.NoTransfer || c.fault.LoseBlocks
			if id := c.core.loras.id(s.Model); id != 0 {
				q.adapt(s.Model, id, c.cfg.BlockTokens)
			}
			g.seqs, g.handovers, g.rooms = append(g.seqs, q), append(g.handovers, h), append(g.rooms, room)
		}
	}
	g.sent = make([]int, len(g.seqs))
	if c.early(s) {
		return g, c.handOver(g)
	}
	return g, nil
}

// each is called for the new tokens [from, to) of choice i. last says that the choice is complete.
type each func(i, from, to int, last bool)

// quiet is for an answer that is written when it is complete.
func quiet(int, int, int, bool) {}

// follow submits g and calls emit for tokens as they come. follow writes the bytes that emit left
// in c.out, until all choices are complete. follow returns an error if the client has left or a
// fault cut the connection. The sequences are then freed.
func (c *call) follow(g *generation, emit each) error {
	if err := c.handOver(g); err != nil {
		if !c.early(g.sampling) {
			emit(0, 0, 0, false) // the role of a chat
		}
		return err
	}
	c.rank.sched.submit(g.seqs)
	unhook := context.AfterFunc(c.r.Context(), g.seqs[0].notify)
	defer unhook()
	err := c.pump(g, emit)
	if err != nil {
		for _, q := range g.seqs {
			q.aborted.Store(true)
		}
		c.rank.sched.poke()
	}
	return err
}

func (c *call) pump(g *generation, emit each) error {
	allowed, then := c.allowance(g)
	for done := 0; done < len(g.seqs) && allowed > 0; {
		<-g.wake
		if c.r.Context().Err() != nil {
			return errGone
		}
		n, err := g.collect(&allowed, emit)
		done += n
		if err != nil {
			return err
		}
		if err := c.push(); err != nil {
			return err
		}
	}
	if allowed == 0 {
		return then()
	}
	return nil
}

// collect passes on the tokens since the last call, at most *allowed. collect returns how many
// choices became complete.
func (g *generation) collect(allowed *int, emit each) (done int, err error) {
	for i, q := range g.seqs {
		over := q.over.Load() // read before produced, so that the last token is not missed
		from, limit := g.sent[i], q.output.limit
		to := min(int(q.produced.Load()), from+*allowed)
		if over && from < limit && int(q.produced.Load()) < limit {
			return done, errCut // the engine has stopped
		}
		if to == from {
			continue
		}
		g.sent[i] = to
		*allowed -= to - from
		emit(i, from, to, to == limit)
		if to == limit {
			done++
		}
	}
	return done, nil
}

const unlimited = 1 << 40

// allowance returns how many tokens a fault lets through, and the end of the answer after these
// tokens.
func (c *call) allowance(g *generation) (tokens int, then func() error) {
	switch f := c.fault; {
	case f.DieAfter != nil:
		return *f.DieAfter, c.cut
	case f.StallAfter != nil:
		return *f.StallAfter, c.park
	case f.Truncate && c.sse:
		return g.seqs[0].output.limit / 2, func() error { return errCut }
	default:
		return unlimited, nil
	}
}

// push writes and flushes c.out.
func (c *call) push() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.w.Write(c.out)
	c.out = c.out[:0]
	if err == nil {
		err = c.flush()
	}
	if err != nil {
		return errGone
	}
	return nil
}

// head sends the response head at once, before the first token, like vLLM.
func (c *call) head(contentType string) {
	c.w.Header().Set("Content-Type", contentType)
	c.w.WriteHeader(http.StatusOK)
	_ = c.flush() // the first write notices a departed client
}

// stream sends the head of an SSE answer.
func (c *call) stream() {
	c.sse = true
	c.head("text/event-stream; charset=utf-8")
}
