// Package connector speaks the wires by which two engines hand over the KV blocks of a prompt. One
// engine, P, computes the prompt. Another one, D, reads the blocks and answers. A Connector knows
// which members the bodies of both requests get, and what P's answer says about its blocks.
//
// The package sends nothing. Package leg picks the nodes and asks them.
package connector

import (
	"errors"
	"time"

	"github.com/cognitora/dataplane/router/scan"
)

// Connector is one wire. A Connector has no state and is safe for concurrent use. If both engines
// are asked at once, so are Prefill and Decode, with one Handover. They change nothing in it.
type Connector interface {
	// Name is the name of the connector in settings.
	Name() string
	// Together says that both engines are asked at once. Otherwise P answers before D is asked.
	Together() bool
	// Many says that a request with several prompts or choices can be handed over.
	Many() bool
	// Alone says that an engine of role decode can compute a prompt too. Otherwise D needs a P for
	// each request.
	Alone() bool
	// Prefill edits the request's body for P.
	Prefill(e *scan.Edits, h *Handover)
	// Receive reads what D needs from P's answer, which has status 200. answer is not kept. Receive
	// is not called if both engines are asked at once.
	Receive(h *Handover, answer []byte) error
	// Decode edits the request's body for D.
	Decode(e *scan.Edits, h *Handover)
}

// Asker is a Connector whose D must be told facts that only P's servers know. The facts stay the
// same until P's engine starts anew.
type Asker interface {
	Connector
	// Source returns the path of a GET request, and whether P's bootstrap server gets it. Otherwise
	// P's engine does.
	Source() (path string, bootstrap bool)
	// Learn reads the facts from the answer, before Prefill and Decode. doc is not kept.
	Learn(h *Handover, doc []byte) error
}

// Freer is a Connector whose P keeps the blocks until some D has read them.
type Freer interface {
	Connector
	// Free edits the request's body further after Decode, for a D that shall only read the blocks.
	Free(e *scan.Edits)
}

// Lender is a Connector whose P keeps the blocks for a time, the lease. D's engine extends it from
// the moment when it gets the request. A D that reads later gets what is in their place, and does
// not know.
type Lender interface {
	Connector
	// Begin returns how long after P's answer D's engine may get the request.
	Begin(lease time.Duration) time.Duration
}

// Cacher is a Connector whose blocks pass through the cache daemons of both hosts. They may be read
// any number of times, and a D that finds some of them gone computes these.
type Cacher interface {
	Connector
	// Coming returns the longest time for which D's host may be asked to bring the blocks, from the
	// request to P on.
	Coming() time.Duration
}

// connectors are all connectors, by name.
var connectors = [...]Connector{NIXL{}, Mooncake{}, KVCached{}, SGLang{}, TRTLLM{}, TRTLLMGeneration{}}

// Of returns the connector with this name, or nil.
func Of(name string) Connector {
	for _, c := range connectors {
		if c.Name() == name {
			return c
		}
	}
	return nil
}

// Names lists the names of all connectors.
func Names() (names []string) {
	for _, c := range connectors {
		names = append(names, c.Name())
	}
	return names
}

// Handover is one prompt on its way from P to D. The caller fills in the exported fields. A
// Handover serves one pair of requests. Reset makes it reusable.
type Handover struct {
	ID        uint64   // random, below 1<<63; no two handovers have the same
	API       scan.API // of the request
	Sequences int      // prompts times choices of the request
	Bootstrap string   // host:port at which P's engine meets D's; "": P has none

	Rank  int // P's data-parallel rank
	Ranks int // P's number of ranks

	DecodeRank  int // D's data-parallel rank
	DecodeRanks int // D's number of ranks

	params []byte // JSON for D, from P's answer
	prompt []byte // token ids of the prompt, JSON, from P's answer; nil: unknown
	facts  []byte // JSON for D, from P's servers
}

// keptParams is the largest memory, in bytes, that a Handover keeps for the next one.
const keptParams = 256 << 10

// Reset forgets everything but memory.
func (h *Handover) Reset() {
	params, prompt, facts := kept(h.params), kept(h.prompt), kept(h.facts)
	*h = Handover{params: params, prompt: prompt, facts: facts}
}

// kept empties b for the next handover, or drops it if it is too large.
func kept(b []byte) []byte {
	if cap(b) > keptParams {
		return nil
	}
	return b[:0]
}

// These errors are returned by Receive and Learn. With ErrNoParams P's engine probably has no
// connector. With ErrOver the answer ends with its first token: there is nothing to hand over.
var (
	ErrNoParams = errors.New("the prefill node's answer has no transfer parameters")
	ErrOver     = errors.New("the answer ends with its first token")
	errGarbled  = errors.New("the prefill node's answer is no JSON object of the expected form")
	errNoFacts  = errors.New("the prefill node's server does not say what the decode node must know")
)
