package books

import "time"

// Listen notes whether the router reads the tokens of the entry's answer as they come. The router
// does not while the client holds the answer up, and the node's silence then says nothing.
func (e *Entry) Listen(listens bool, now time.Time) {
	b := e.book
	if b == nil || e.listens == listens {
		return
	}
	if e.listens = listens; !listens {
		b.listened.Add(-1)
		return
	}
	if b.listened.Load() == 0 {
		b.heard.Store(b.clock(now))
	}
	b.listened.Add(1)
}

// Listens says whether the entry is listened to.
func (e *Entry) Listens() bool { return e.listens }

// heardEvery is the silence up to which a token changes nothing. Most tokens then only read.
const heardEvery = 16 * time.Millisecond

// Heard notes a token of the entry's answer. It takes away half of the node's silence. So a silence
// is over after a few tokens, and a node whose tokens come far apart stays silent between them.
func (e *Entry) Heard(now time.Time) {
	if !e.listens {
		return
	}
	b := e.book
	at := b.clock(now)
	if since := at - b.heard.Load(); since >= int64(heardEvery) || since < 0 {
		b.heard.Store(at - max(since, 0)/2)
	}
}

// Silence returns how long the node has given no token to the answers that the router listens to,
// or hardly any. The first tokens of answers do not count as tokens here, and time that the node
// has spent on prompts does not count as silence. Silence is 0 if the router listens to no answer.
func (b *Book) Silence(now time.Time) time.Duration {
	if b.listened.Load() <= 0 {
		return 0
	}
	return time.Duration(max(b.clock(now)-b.heard.Load(), 0))
}

// clock returns the time at now on a clock that stands still while the node computes prompts. A
// prompt that took less time than expected sets the clock back.
func (b *Book) clock(now time.Time) int64 { return int64(now.Sub(epoch) - b.Computed(now)) }
