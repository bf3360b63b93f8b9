package engine

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
)

// oneOrMore is a value, or a list of values, one for each sequence of a request.
type oneOrMore[T any] struct {
	one  *T
	many []T
}

// UnmarshalJSON reads either form.
func (v *oneOrMore[T]) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, &v.many)
	}
	return json.Unmarshal(b, &v.one)
}

// at returns the value of sequence k, or nil if there is none. A list repeats.
func (v *oneOrMore[T]) at(k int) *T {
	if len(v.many) > 0 {
		return &v.many[k%len(v.many)]
	}
	return v.one
}

// bootstrap are the fields of a request to SGLang with disaggregation.
type bootstrap struct {
	Host        oneOrMore[string] `json:"bootstrap_host"`
	Port        oneOrMore[int]    `json:"bootstrap_port"`
	Room        oneOrMore[uint64] `json:"bootstrap_room"`
	RoutedRank  *int              `json:"routed_dp_rank"`
	PrefillRank *int              `json:"disagg_prefill_dp_rank"`
}

// defaultBootstrapPort is SGLang's.
const defaultBootstrapPort = 8998

// room returns the room of sequence k. Without a list each sequence has the number after the one
// before.
func (b *bootstrap) room(k int) *uint64 {
	if b.Room.one != nil {
		return new(*b.Room.one + uint64(k))
	}
	return b.Room.at(k)
}

func roomName(rank int, room uint64) string { return fmt.Sprintf("room/%d/%d", rank, room) }

// sglang returns the handover of SGLang. An engine of a role takes only requests with a room. An
// engine with RoleBoth ignores the fields.
func (c *call) sglang(s *sampling, k int) (h handover, err error) {
	b := &s.bootstrap
	room := b.room(k)
	switch {
	case c.cfg.Role == RoleBoth:
		return h, nil
	case room == nil:
		return h, badRequest("Invalid request: Disaggregated request received without bootstrap room id.", "")
	case c.cfg.Role == RolePrefill:
		return handover{lendAs: roomName(c.rank.number, *room), meet: true}, nil
	}
	h.from = &blockSource{
		query:  blockRequest{Room: room, Rank: b.PrefillRank, Wait: true},
		cached: func(p *lentPrompt) int { return p.cached },
	}
	if host := b.Host.at(k); host != nil {
		port := defaultBootstrapPort
		if p := b.Port.at(k); p != nil {
			port = *p
		}
		h.from.addr = net.JoinHostPort(*host, strconv.Itoa(port))
	}
	return h, nil
}

// moveToRank computes the request at the rank that its body asks for, as SGLang does. A prefill
// without a wish goes to the rank that follows from its room.
func (c *call) moveToRank(s *sampling) error {
	all := c.core.ranks
	wish := -1
	switch room := s.bootstrap.room(0); {
	case c.cfg.Connector != ConnectorSGLang:
		return nil
	case s.RoutedRank != nil:
		wish = *s.RoutedRank
		if wish < 0 || wish >= len(all) {
			return badRequest(fmt.Sprintf("routed_dp_rank=%d out of range [0, %d)", wish, len(all)), "routed_dp_rank")
		}
	case c.cfg.Role == RolePrefill && room != nil && c.r.Header.Get(RankHeader) == "":
		wish = int(*room % uint64(len(all)))
	default:
		return nil
	}
	c.rank.calls.Add(-1)
	c.rank = all[wish]
	c.rank.calls.Add(1)
	return nil
}
