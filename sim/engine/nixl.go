package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// kvTransfer are the kv_transfer_params of a request. A member of a wrong type counts as absent.
type kvTransfer struct {
	remoteDecode  bool // another engine shall read the blocks of this prompt
	remotePrefill bool // the blocks are at another engine

	blocks  int // ids in remote_block_ids
	engine  string
	request string
	host    string
	port    int
	cached  int // remote_prefill_cached_tokens

	ids []uint32 // prompt_token_ids, used by an engine without a connector too
}

// UnmarshalJSON reads an object of any members.
func (k *kvTransfer) UnmarshalJSON(b []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(b, &members); err != nil {
		return err
	}
	for name, to := range map[string]any{
		"do_remote_decode": &k.remoteDecode, "do_remote_prefill": &k.remotePrefill, "remote_engine_id": &k.engine,
		"remote_request_id": &k.request, "remote_host": &k.host, "remote_port": &k.port,
		"remote_prefill_cached_tokens": &k.cached, "prompt_token_ids": &k.ids,
	} {
		_ = json.Unmarshal(members[name], to) // absent or of another type
	}
	var groups [][]int
	_ = json.Unmarshal(members["remote_block_ids"], &groups)
	for _, g := range groups {
		k.blocks += len(g)
	}
	return nil
}

// kvAnswer is the member kv_transfer_params of the answer to a prefill, in vLLM's order.
type kvAnswer struct {
	RemotePrefill bool    `json:"do_remote_prefill"`
	RemoteDecode  bool    `json:"do_remote_decode"`
	Blocks        [][]int `json:"remote_block_ids"`
	Engine        string  `json:"remote_engine_id"`
	Request       string  `json:"remote_request_id"`
	Host          string  `json:"remote_host"`
	Port          int     `json:"remote_port"`
	TP            int     `json:"tp_size"`
	DCP           int     `json:"dcp_size"`
	PP            int     `json:"pp_size"`
	Tokens        int     `json:"remote_num_tokens"`
	Expiry        *int    `json:"remote_blocks_expiry_time"`
	Mode          string  `json:"transfer_mode"`
	Cached        int     `json:"remote_prefill_cached_tokens"`
}

// engineID returns the id of a rank's block store. Each start of the engine has an id of its own.
func (e *Engine) engineID(c *core, r *rank) string {
	name := fnv.New64a()
	name.Write([]byte(e.cfg.ID))
	a := mix(e.cfg.Seed ^ name.Sum64() ^ mix(c.start))
	b := mix(a)
	id := fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", a>>32, a>>16&0xffff, a&0xfff, b>>48|0x8000, b&0xffffffffffff)
	if len(c.ranks) > 1 {
		id += fmt.Sprintf("_dp%d", r.number)
	}
	return id
}

// lendAs returns the name under which other engines may read a prompt.
func (c *call) lendAs() string { return fmt.Sprintf("%s-%08x", c.id, uint32(mix(c.ids.Add(1)))) }

// kvAnswer returns the kv_transfer_params of a complete answer. They are nil unless the prompt is
// lent.
func (c *call) kvAnswer(g *generation) *kvAnswer {
	q := g.seqs[0]
	if q.lendAs == "" || q.output.reason != "length" {
		return nil
	}
	a := &kvAnswer{
		RemotePrefill: true, Engine: c.engineID(c.core, c.rank), Request: q.lendAs, TP: 1, DCP: 1, PP: 1,
		Tokens: len(q.prompt), Mode: "pull", Cached: int(q.cached.Load()),
	}
	host, port, _ := net.SplitHostPort(c.SideChannel())
	a.Host = host
	a.Port, _ = strconv.Atoi(port)
	// The cache has no numbers for its blocks. Any will do, because readers name the request.
	ids := make([]int, (len(q.prompt)+c.cfg.BlockTokens-1)/c.cfg.BlockTokens)
	first := int(mix(uint64(len(ids))^c.ids.Load()) % uint64(c.cfg.CacheBlocks))
	for i := range ids {
		ids[i] = (first + i) % c.cfg.CacheBlocks
	}
	a.Blocks = [][]int{ids}
	return a
}

// load reads the prompt's blocks from the engine that the request names. load returns the tokens that the
// blocks are of, or nil if this engine should compute the prompt.
func (c *call) load(s *sampling, prompt []uint32) ([]uint32, error) {
	k := s.KVTransfer
	if k.blocks == 0 || k.engine == "" || k.request == "" || k.host == "" || k.port == 0 {
		return nil, nil // as vLLM does, with a warning in its log
	}
	tokens, err := readBlocks(c.r.Context(), net.JoinHostPort(k.host, strconv.Itoa(k.port)),
		blockRequest{Engine: k.engine, Request: k.request})
	lender := c.core.lender
	switch {
	case c.r.Context().Err() != nil:
		return nil, errGone
	case errors.Is(err, errNoBlocks) && c.cfg.LoadFailure == LoadStale:
		lender.wrong.Add(1)
		return appendTokens(nil, "stale "+k.request), nil
	case err != nil && c.cfg.LoadFailure == LoadRecompute:
		lender.lost.Add(1)
		return nil, nil
	case err != nil:
		lender.lost.Add(1)
		failed := &apiError{http.StatusInternalServerError, "InternalServerError", "Internal server error", ""}
		if s.Stream && c.cfg.LoadFailure == LoadFailInStream {
			return nil, lateError{failed}
		}
		return nil, failed
	}
	if !slices.Equal(tokens, prompt) {
		lender.wrong.Add(1)
	}
	seconds := float64(len(tokens)) / c.cfg.TransferTokensPerSecond / c.cfg.Speed
	return tokens, c.wait(time.Duration(seconds * float64(time.Second)))
}

// readLent serves the side channel.
func (e *Engine) readLent(q blockRequest) []uint32 {
	c := e.core()
	if c == nil || !slices.ContainsFunc(c.ranks, func(r *rank) bool { return e.engineID(c, r) == q.Engine }) {
		return nil
	}
	return c.lender.take(q.Request)
}
