package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// The side channel is the HTTP server from which other engines read an engine's blocks, in place of
// RDMA. It is also the bootstrap server of SGLang and of vLLM's MooncakeConnector. POST /blocks has
// a blockRequest as its body. The answer is the tokens, as little-endian 32-bit integers, or 404.
const (
	maxSideRequest = 4 << 10          // bytes of a request
	maxSideAnswer  = 256 << 20        // bytes of an answer
	sideTimeout    = 10 * time.Second // to read blocks that are there
	cachedHeader   = "X-Cached-Tokens"
)

// blockRequest names a prompt.
type blockRequest struct {
	Engine string  `json:"engine_id,omitempty"` // of the rank that has the blocks
	Name   string  `json:"name,omitempty"`
	Room   *uint64 `json:"room,omitempty"` // SGLang's, instead of Engine and Name
	Rank   *int    `json:"rank,omitempty"` // the rank with the room; default Room modulo the number of ranks
	Wait   bool    `json:"wait,omitempty"` // for a prompt that is not computed yet
}

// These errors say why blocks cannot be read.
var (
	errNoBlocks = errors.New("engine: the blocks are gone")
	errNoPeer   = errors.New("engine: nobody has the blocks")
)

// sidePaths serves the side channel.
func (e *Engine) sidePaths() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /blocks", e.serveBlocks)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "OK") })
	if e.cfg.Connector == ConnectorMooncake {
		mux.HandleFunc("GET /query", e.serveQuery)
	}
	return mux
}

func (e *Engine) serveBlocks(w http.ResponseWriter, r *http.Request) {
	var q blockRequest
	c := e.core()
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxSideRequest)).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// Without a read the server would not notice that the client leaves.
	_, _ = io.Copy(io.Discard, r.Body)
	name := q.Name
	switch {
	case c == nil:
		http.Error(w, "killed", http.StatusNotFound)
		return
	case q.Room != nil:
		rank := int(*q.Room % uint64(len(c.ranks)))
		if q.Rank != nil {
			rank = *q.Rank
		}
		name = roomName(rank, *q.Room)
	case q.Engine != "" && !slices.ContainsFunc(c.ranks, func(r *rank) bool { return e.engineID(c, r) == q.Engine }):
		http.Error(w, "another engine", http.StatusNotFound)
		return
	}
	p := c.lender.take(r.Context(), name, q.Wait)
	if p == nil {
		http.Error(w, "no such blocks", http.StatusNotFound)
		return
	}
	b := make([]byte, 0, 4*len(p.tokens))
	for _, t := range p.tokens {
		b = binary.LittleEndian.AppendUint32(b, t)
	}
	w.Header().Set(cachedHeader, strconv.Itoa(p.cached))
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	_, _ = w.Write(b) // the reader may have left
}

// serveQuery answers as the bootstrap server of vLLM's MooncakeConnector.
func (e *Engine) serveQuery(w http.ResponseWriter, _ *http.Request) {
	ranks := map[string]any{}
	if c := e.core(); c != nil {
		for _, r := range c.ranks {
			ranks[strconv.Itoa(r.number)] = fields{"engine_id": e.engineID(c, r),
				"worker_addr": fields{"0": fields{"0": "tcp://" + e.SideChannel()}}}
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(ranks) // the client may have left
}

// peers has a connection of its own for each request, so that none outlives its request.
var peers = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// readBlocks reads a prompt from another engine's side channel. The error is errNoBlocks if that
// engine does not have it, else errNoPeer.
func readBlocks(ctx context.Context, addr string, q blockRequest) (*lentPrompt, error) {
	body, err := json.Marshal(q)
	if err != nil || len(body) > maxSideRequest {
		return nil, errNoBlocks
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/blocks", bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoPeer, err)
	}
	res, err := peers.Do(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoPeer, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, errNoBlocks
	}
	b, err := io.ReadAll(io.LimitReader(res.Body, maxSideAnswer))
	if err != nil || int64(len(b)) != res.ContentLength || len(b) == 0 || len(b)%4 != 0 {
		return nil, errNoPeer
	}
	p := &lentPrompt{tokens: make([]uint32, len(b)/4)}
	for i := range p.tokens {
		p.tokens[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	p.cached, _ = strconv.Atoi(res.Header.Get(cachedHeader))
	return p, nil
}

// openSide listens for other engines, if this one has a connector. The caller holds e.mu.
func (e *Engine) openSide() error {
	if e.cfg.Connector == ConnectorNone {
		return nil
	}
	addr := e.cfg.SideChannel
	if bound := e.sideAt.Load(); bound != nil {
		addr = *bound
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	e.sideAt.Store(new(l.Addr().String()))
	e.side = newDoor(l, e.sidePaths(), &e.traffic.connections)
	return nil
}

// SideChannel returns the host:port from which other engines read this engine's blocks, which is
// also that of its bootstrap server. SideChannel returns "" without a connector.
func (e *Engine) SideChannel() string {
	if at := e.sideAt.Load(); at != nil {
		return reachable(*at)
	}
	return ""
}
