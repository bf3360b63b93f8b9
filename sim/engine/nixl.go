package engine

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net"
	"strconv"
	"strings"
)

// kvTransfer are the kv_transfer_params of a request to vLLM. A member of a wrong type counts as
// absent.
type kvTransfer struct {
	remoteDecode  bool // another engine shall read the blocks of this prompt
	remotePrefill bool // the blocks are at another engine
	engine        string

	// These members are NixlConnector's.
	blocks  int // ids in remote_block_ids
	request string
	host    string
	port    int
	cached  int // remote_prefill_cached_tokens

	// These members are MooncakeConnector's.
	transfer  string
	bootstrap string // http://HOST:PORT

	// These members are KVCachedConnector's.
	store  bool
	stored int // tokens
	waitMS int

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
		"remote_prefill_cached_tokens": &k.cached, "prompt_token_ids": &k.ids, "transfer_id": &k.transfer,
		"remote_bootstrap_addr": &k.bootstrap,
		"cgn_store":             &k.store, "cgn_tokens": &k.stored, "cgn_wait_ms": &k.waitMS,
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

// nixl returns the handover of vLLM's NixlConnector. One prompt of a request can be handed over.
func (c *call) nixl(s *sampling, k int) (h handover) {
	kv := s.KVTransfer
	switch {
	case kv == nil || k > 0:
	case kv.remoteDecode:
		h.lendAs = fmt.Sprintf("%s-%08x", c.id, uint32(mix(c.ids.Add(1))))
	case kv.remotePrefill && kv.blocks > 0 && kv.engine != "" && kv.request != "" && kv.host != "" && kv.port != 0:
		h.from = &blockSource{
			addr:   net.JoinHostPort(kv.host, strconv.Itoa(kv.port)),
			query:  blockRequest{Engine: kv.engine, Name: kv.request},
			cached: func(*lentPrompt) int { return kv.cached },
		}
	}
	// With other parameters vLLM writes a warning to its log and computes the prompt.
	return h
}

// kvAnswer returns the kv_transfer_params of a complete answer. They are nil unless the prompt is
// lent or stored.
func (c *call) kvAnswer(g *generation) any {
	q := g.seqs[0]
	if c.cfg.Connector == ConnectorKVCached {
		return c.stores(q)
	}
	if c.cfg.Connector != ConnectorNIXL || !q.lent() || c.fault.NoTransfer {
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

// mooncake returns the handover of vLLM's MooncakeConnector. Both legs know the transfer_id, and
// may come in any order. A leg at an engine of the other role fails: vLLM's assertions end the
// engine then.
func (c *call) mooncake(s *sampling, k int) (h handover, err error) {
	kv := s.KVTransfer
	switch {
	case kv == nil || k > 0 || kv.transfer == "":
	case kv.remotePrefill && c.cfg.Role == RolePrefill,
		kv.remoteDecode && !kv.remotePrefill && c.cfg.Role == RoleDecode:
		return h, loadFailed()
	case kv.remotePrefill && kv.engine != "" && kv.bootstrap != "":
		addr, _ := strings.CutPrefix(kv.bootstrap, "http://")
		if addr == kv.bootstrap {
			addr = "" // vLLM asks for a URL
		}
		h.from = &blockSource{
			addr:   strings.TrimSuffix(addr, "/"),
			query:  blockRequest{Engine: kv.engine, Name: mooncakeName(kv.engine, kv.transfer), Wait: true},
			cached: func(p *lentPrompt) int { return len(p.tokens) },
		}
	case kv.remoteDecode:
		h.lendAs = mooncakeName(c.engineID(c.core, c.rank), kv.transfer)
	}
	return h, nil
}

func mooncakeName(engine, transfer string) string { return engine + "/" + transfer }
