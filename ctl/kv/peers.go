package kv

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/ctl/cache"
	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/cli"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// peerPaths is the output of kv peers.
type peerPaths struct {
	Peers   []peerPath     `json:"peers"`
	Devices []cache.Device `json:"devices"`
	Unknown string         `json:"fleet_unknown,omitempty"` // why the fleet is not known yet
}

// peerPath describes how blocks come from another host.
type peerPath struct {
	Peer          string             `json:"peer"`
	Address       string             `json:"address"`
	Wanted        string             `json:"wanted"`
	Lane          string             `json:"lane"`
	WhyNotRDMA    string             `json:"why_not_rdma,omitempty"`
	Lanes         map[string]laneUse `json:"lanes"`
	Pairs         uint32             `json:"pairs"`
	GrantsHeld    uint32             `json:"grants_held"`
	GrantsGiven   uint32             `json:"grants_given"`
	LastError     string             `json:"last_error,omitempty"`
	LastErrorMS   int64              `json:"last_error_unix_ms,omitempty"`
	SilentSinceMS int64              `json:"silent_since_unix_ms,omitempty"`
}

// laneUse is the traffic over one lane since the other host has joined or rejoined the fleet.
type laneUse struct {
	Operations  uint64 `json:"operations"`
	Bytes       uint64 `json:"bytes"`
	Errors      uint64 `json:"errors"`
	Fallbacks   uint64 `json:"fallbacks"`
	LastError   string `json:"last_error,omitempty"`
	LastErrorMS int64  `json:"last_error_unix_ms,omitempty"`
}

func newPeers(k *commands) *cobra.Command {
	return &cobra.Command{
		Use: "peers", Short: "Say over which lane blocks come from each other host, and where that is not RDMA, why",
		Args: cli.NoArguments,
		Long: "STATE says whether the other host answers, or for how long it has not: it is not asked then until it " +
			"does. WANTED is what the configuration asks for, LANE what\n" +
			"large blocks take now, - where nothing gets through; small ones may go over QUIC all the same. RDMA, " +
			"QUIC and TLS have what went over each since the other host came, or came back, into the\n" +
			"fleet. ERRORS are gets and puts that were not done, FELL BACK those that were done, or tried, over " +
			"another lane instead. PAIRS are queue pairs; HELD are blocks\n" +
			"of the other host that this one may read now by RDMA, GRANTED those of this host that the other one may " +
			"read. The last error of each lane is below.\n" +
			"-o json has each lane's operations, bytes, errors and fallbacks.",
		Example: "  cgn-ctl kv peers\n  cgn-ctl kv peers -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			return k.Soon(c.Context(), func(ctx context.Context, client pb.KvClient) error {
				r, err := client.Peers(ctx, &pb.PeersRequest{})
				if status.Code(err) == codes.Unimplemented {
					return errors.New("this cache daemon does not tell about its peers: it has no lanes to choose " +
						"from, or is of another version")
				}
				if err != nil {
					return err
				}
				v := peerPaths{Peers: []peerPath{}, Devices: *cache.DevicesOf(r), Unknown: r.Unknown}
				for _, p := range r.Peers {
					v.Peers = append(v.Peers, peerOf(p))
				}
				return k.Show(v, func(t *cli.Table) { v.write(t, time.Now()) })
			})
		},
	}
}

func peerOf(p *pb.PeerPath) peerPath {
	v := peerPath{
		Peer: p.Peer, Address: p.Address, Wanted: p.Wanted, Lane: p.Lane, WhyNotRDMA: p.WhyNotRdma,
		Lanes: map[string]laneUse{},
		Pairs: p.Pairs, GrantsHeld: p.GrantsHeld, GrantsGiven: p.GrantsGiven, LastError: p.LastError,
		LastErrorMS: p.LastErrorUnixMs, SilentSinceMS: p.SilentSinceUnixMs,
	}
	for _, l := range p.Lanes {
		v.Lanes[l.Lane] = laneUse{l.Operations, l.Bytes, l.Errors, l.Fallbacks, l.LastError, l.LastErrorUnixMs}
	}
	return v
}

func (v *peerPaths) write(t *cli.Table, now time.Time) {
	switch {
	case len(v.Peers) > 0:
		t.Row("PEER", "ADDRESS", "STATE", "WANTED", "LANE", "RDMA", "QUIC", "TLS", "ERRORS", "FELL BACK", "PAIRS",
			"HELD", "GRANTED")
	case v.Unknown == "":
		t.Line("this cache knows no other")
	}
	for i := range v.Peers {
		p := &v.Peers[i]
		var errs, fell uint64
		for _, l := range p.Lanes {
			errs, fell = errs+l.Errors, fell+l.Fallbacks
		}
		t.Row(p.Peer, p.Address, p.state(now), cell.Dash(p.Wanted), cell.Dash(p.Lane), p.over("rdma"), p.over("quic"),
			p.over("tls"), errs, fell, p.Pairs, p.GrantsHeld, p.GrantsGiven)
	}
	v.whyNotRDMA(t)
	for i := range v.Peers {
		v.Peers[i].explain(t, now)
	}
	if v.Unknown != "" {
		t.Line("\nthe fleet is not known yet: " + v.Unknown)
	}
	if len(v.Devices) > 0 {
		t.Line("")
		cache.WriteDevices(t, v.Devices)
	}
}

// state returns whether the host answers.
func (p *peerPath) state(now time.Time) string {
	if p.SilentSinceMS == 0 {
		return "answers"
	}
	return "silent for " + age(now, p.SilentSinceMS)
}

// mostNamed is how many hosts a line about several hosts names.
const mostNamed = 4

// whyNotRDMA writes a line for each reason, with all hosts that have it. whyNotRDMA leaves out
// hosts that cannot be reached at all.
func (v *peerPaths) whyNotRDMA(t *cli.Table) {
	var reasons []string
	hosts := map[string][]string{}
	for i := range v.Peers {
		p := &v.Peers[i]
		if p.WhyNotRDMA == "" || p.SilentSinceMS != 0 {
			continue
		}
		if hosts[p.WhyNotRDMA] == nil {
			reasons = append(reasons, p.WhyNotRDMA)
		}
		hosts[p.WhyNotRDMA] = append(hosts[p.WhyNotRDMA], p.Peer)
	}
	for _, why := range reasons {
		names, more := hosts[why], ""
		if len(names) > mostNamed {
			names, more = names[:mostNamed], fmt.Sprintf(" and %d more", len(names)-mostNamed)
		}
		t.Line(fmt.Sprintf("\n%s%s: not over RDMA: %s", strings.Join(names, ", "), more, why))
	}
}

// explain writes a line for the failure of each lane.
func (p *peerPath) explain(t *cli.Table, now time.Time) {
	if p.LastError != "" && p.LastError != p.WhyNotRDMA {
		t.Line(fmt.Sprintf("\n%s: last error of RDMA, %s ago: %s", p.Peer, age(now, p.LastErrorMS), p.LastError))
	}
	for _, lane := range []string{"rdma", "quic", "tls"} {
		if l := p.Lanes[lane]; l.LastError != "" && l.LastError != p.LastError {
			t.Line(fmt.Sprintf("\n%s: last error over %s, %s ago: %s", p.Peer, strings.ToUpper(lane),
				age(now, l.LastErrorMS), l.LastError))
		}
	}
}

func age(now time.Time, unixMS int64) string {
	return now.Sub(time.UnixMilli(unixMS)).Round(time.Second).String()
}

// over formats the traffic over a lane.
func (p *peerPath) over(lane string) string {
	l, ok := p.Lanes[lane]
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%s in %d", cell.Bytes(l.Bytes), l.Operations)
}
