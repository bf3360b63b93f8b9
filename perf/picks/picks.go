// Package picks has fleets of the router in this process, at whose nodes no server runs, to measure
// the way from the body of a request to the chosen node. Nothing is sent.
package picks

import (
	"bytes"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/where"
)

const (
	model       = "sim"
	promptBytes = 2 << 10
	// working is the number of requests of 8 KB that each node computes while the picks are made.
	working       = 2
	workingBlocks = 8 << 10 / prefix.BlockBytes
)

// Fleet is a router with nodes. One goroutine at a time uses a Fleet.
type Fleet struct {
	nodes  *fleet.Fleet
	router *leg.Dispatcher
	asked  *request.Request
	memo   *scan.Memo
	body   []byte
	number []byte // in body; it tells the prompts apart
	next   int64
}

// New returns a fleet in which the router picks in a mode of the policy. "" is the default mode.
func New(nodes int, mode string) (*Fleet, error) {
	p := policy.Default()
	if mode != "" {
		if err := p.Mode.UnmarshalText([]byte(mode)); err != nil {
			return nil, err
		}
	}
	index := prefix.NewIndex(prefix.Options{Inline: true})
	o := fleet.Options{Index: index, Logger: slog.New(slog.DiscardHandler), Proven: true}
	for i := range nodes {
		o.Backends = append(o.Backends, fleet.Backend{
			ID: fmt.Sprintf("node-%04d", i), Model: model,
			URL: fmt.Sprintf("http://10.%d.%d.%d:8000", i>>16&255, i>>8&255, i&255), // never dialled
		})
	}
	all, err := fleet.New(o)
	if err != nil {
		return nil, err
	}
	chosen, counts, memo := &atomic.Pointer[policy.Policy]{}, metrics.New(), where.NewMemo(16<<20)
	chosen.Store(p)
	f := &Fleet{nodes: all, asked: request.New(), memo: memo.Scans(), next: 1e15}
	f.router = leg.New(leg.Parts{
		Fleet: all, Where: &where.Finder{Index: index, Memo: memo, Metrics: counts}, Policy: chosen,
		Gate: admission.New(admission.Options{}), Budget: admission.NewBudget(20, 64, nil), Metrics: counts,
		Stored: affinity.New(1), Logger: o.Logger,
	}, leg.Options{})
	f.write()
	return f, f.occupy(working * nodes)
}

// write writes the request's body.
func (f *Fleet) write() {
	text := strings.Repeat("the quick brown fox jumps over the lazy dog. ", promptBytes/45+1)[:promptBytes]
	f.body = fmt.Appendf(nil, `{"model":%q,"messages":[{"role":"system","content":"be brief"},`+
		`{"role":"user","content":%q}]}`, model, text)
	at := bytes.Index(f.body, []byte("the quick"))
	f.number = f.body[at : at+len(strconv.FormatInt(f.next, 10))]
}

// occupy leaves prompts of their own with the nodes.
func (f *Fleet) occupy(prompts int) error {
	now := time.Now()
	for i := range prompts {
		keys := make([]uint64, workingBlocks)
		for j := range keys {
			keys[j] = uint64(i)<<32 | uint64(j) + 1
		}
		if _, err := f.router.Rehearse(leg.Piece{Keys: keys}, now); err != nil {
			return fmt.Errorf("prompt %d: %w", i, err)
		}
	}
	return nil
}

// Pick picks the node for n requests, one after the other. No node has seen their prompts.
func (f *Fleet) Pick(n int) error {
	for range n {
		if _, err := f.pick(); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fleet) pick() (node string, err error) {
	f.next++
	strconv.AppendInt(f.number[:0], f.next, 10)
	r := f.asked
	defer r.Scan.Reset()
	r.API, r.Method, r.Path, r.Received = scan.Chat, "POST", "/v1/chat/completions", time.Now()
	r.Own(f.body, nil)
	if err := r.Read(nil, f.memo); err != nil {
		return "", err
	}
	node, refused := f.router.Pick(r, leg.Question{})
	if refused != nil {
		return "", refused
	}
	return node, nil
}
