package leg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/connector"
)

// facts are what prefill nodes' servers say about them, which some connectors tell D. Each is asked
// for once, and again after a hand-over that failed. Requests that need the same fact wait for the
// same question. A refusal of a client's key is kept for nobody else.
type facts struct {
	mu    sync.Mutex
	known map[string]*fact // by what was asked; at most maxFacts
	http  *http.Client     // to bootstrap servers
}

// fact is one answer of a server.
type fact struct {
	done chan struct{} // closed once the other fields are final
	doc  []byte
	err  error
	at   time.Time // of the answer
}

const (
	maxFacts     = 4096             // a further one displaces any other
	maxFactBytes = 1 << 20          // of one answer
	factWithin   = 2 * time.Second  // until the answer has come
	factLife     = 10 * time.Minute // then it is asked for again
	factRetry    = time.Second      // after which a failed question is repeated
)

func newFacts() facts {
	return facts{known: map[string]*fact{}, http: &http.Client{
		Timeout: factWithin,
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: factWithin}).DialContext, DisableKeepAlives: true,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

var (
	errErrands = errors.New("too many questions to prefill nodes are under way")
	errKey     = errors.New("the node refuses the client's key")
)

// get returns the fact with that key, which ask finds out. The fact may not be done yet.
func (f *facts) get(key string, e *errands, ask func() ([]byte, error)) *fact {
	f.mu.Lock()
	defer f.mu.Unlock()
	if x := f.known[key]; x != nil && x.fresh(time.Now()) {
		return x
	}
	for other, x := range f.known {
		if len(f.known) < maxFacts {
			break
		}
		if x.ended() {
			delete(f.known, other)
		}
	}
	x := &fact{done: make(chan struct{})}
	if len(f.known) >= maxFacts || !e.start(0, func() {
		defer close(x.done)
		x.doc, x.err = ask()
		x.at = time.Now()
	}) {
		x.err, x.at = errErrands, time.Now()
		close(x.done)
		return x
	}
	f.known[key] = x
	return x
}

// ended says whether the question has been answered, or has failed.
func (x *fact) ended() bool {
	select {
	case <-x.done:
		return true
	default:
		return false
	}
}

// fresh says whether the answer still counts at now.
func (x *fact) fresh(now time.Time) bool {
	if !x.ended() {
		return true
	}
	life := factLife
	switch {
	case errors.Is(x.err, errKey): // other clients have other keys
		return false
	case x.err != nil:
		life = factRetry
	}
	return now.Sub(x.at) < life
}

// forget makes the next request ask again, unless the last question failed a moment ago.
func (f *facts) forget(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if x := f.known[key]; x != nil && x.ended() && x.err == nil {
		delete(f.known, key)
	}
}

// learn tells h.data the facts about the node n that its connector needs, if it needs any.
func (h *hand) learn(n *member) error {
	asker, ok := h.with.(connector.Asker)
	if h.factKey = ""; !ok {
		return nil
	}
	l := h.of
	d, auth := l.d, string(l.Request.Auth)
	path, bootstrap := asker.Source()
	ask := func() ([]byte, error) { return askNode(n, path, []byte(auth)) }
	if h.factKey = n.node.ID + path; bootstrap {
		at := h.data.Bootstrap
		h.factKey = at + path
		ask = func() ([]byte, error) { return d.facts.fetch("http://" + at + path) }
	}
	doc, err := l.fact(h.factKey, ask)
	if err != nil {
		return err
	}
	return asker.Learn(&h.data, doc)
}

// fact returns the fact with that key. If the node refuses the key of another client, whose
// question the leg has shared, fact asks once more.
func (l *Leg) fact(key string, ask func() ([]byte, error)) ([]byte, error) {
	for again := false; ; again = true {
		asked := false
		x := l.d.facts.get(key, &l.d.errands, func() ([]byte, error) {
			asked = true
			return ask()
		})
		if !l.Request.Life.Await(x.done) {
			return nil, relay.ErrCanceled
		}
		if again || asked || !errors.Is(x.err, errKey) {
			return x.doc, x.err
		}
	}
}

// fetch returns the answer to a GET request.
func (f *facts) fetch(url string) ([]byte, error) {
	q, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := f.http.Do(q)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	doc, err := io.ReadAll(io.LimitReader(resp.Body, maxFactBytes))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return doc, err
}

// askNode returns the engine's answer to a GET request. auth is a client's key; it counts if the
// router has none for the node.
func askNode(n *member, path string, auth []byte) ([]byte, error) {
	until := time.Now().Add(factWithin)
	q := relay.Request{Method: http.MethodGet, Path: path}
	if len(auth) == 0 {
		auth = nil
	}
	address(&q, n.node.Node, auth, nil)
	status, doc, err := n.exchange(&q, until, maxFactBytes)
	switch own := n.node.Pool.Target().Authorization != ""; {
	case err != nil || status == http.StatusOK:
	case !own && (status == http.StatusUnauthorized || status == http.StatusForbidden):
		err = fmt.Errorf("%s answers %d to %s: %w", n.node.ID, status, path, errKey)
	default:
		err = fmt.Errorf("%s answers %d to %s", n.node.ID, status, path)
	}
	return doc, err
}
