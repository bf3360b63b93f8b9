package router

import (
	"cmp"
	"crypto/tls"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/gateway"
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/kvevents"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/logprobs"
	"github.com/cognitora/dataplane/router/plan"
)

// backends returns the static backends from both places: the tables and the flags.
func (c *Config) backends() ([]fleet.Backend, error) {
	all := []fleet.Backend{} // not nil, because a reload to an empty list is a reload
	for _, text := range c.Router.Backends {
		b, err := fleet.ParseBackend(text)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	for _, b := range c.Backends {
		all = append(all, b.backend())
	}
	return all, nil
}

func (b *BackendConfig) backend() fleet.Backend {
	return fleet.Backend{
		URL: b.URL, ID: b.ID, Model: b.Model, Role: b.Role, MaxConcurrent: b.MaxConcurrent,
		APIKeyFile: b.APIKeyFile, CA: b.CA, Cert: b.Cert, CertKey: b.CertKey, KV: b.KV,
		KVEvents: b.KVEvents, KVReplay: b.KVReplay, Labels: b.Labels,
		Experts: b.Experts, MaxBatchedTokens: b.MaxBatchedTokens, DataParallel: b.DataParallel,
		Connector: b.Connector, Bootstrap: b.Bootstrap,
	}
}

// staticCaches returns the cache daemons that backends name.
func staticCaches(backends []fleet.Backend) map[string]string {
	caches := map[string]string{}
	for _, b := range backends {
		if b.KV != "" {
			caches[b.KV] = b.KV
		}
	}
	return caches
}

// eventSources returns the engines whose KV events the router follows itself, each rank of their
// nodes in s. A backend that is no node yet counts as one rank.
func (c *Config) eventSources(backends []fleet.Backend, s *fleet.Snapshot) (sources []kvevents.Source) {
	for _, b := range backends {
		if b.KVEvents == "" || !c.Prefix.KVEvents {
			continue
		}
		source := kvevents.Source{Node: b.NodeID(), Name: b.NodeID(), Endpoint: b.KVEvents, Replay: b.KVReplay}
		n := s.Node(source.Node)
		if n == nil {
			sources = append(sources, source)
			continue
		}
		for _, r := range n.Ranks() {
			source.Name, source.Rank = r.Name, r.Index
			sources = append(sources, source)
		}
	}
	return sources
}

// promoteModes are the values of router.promote.
var promoteModes = map[string]holdings.Promote{"off": holdings.PromoteOff, "disk": holdings.PromoteDisk,
	"fleet": holdings.PromoteFleet}

func dialEtcd(access *cluster.Access) (*cluster.Client, error) {
	c, err := access.Config()
	if err != nil {
		return nil, err
	}
	return cluster.Dial(c)
}

// client returns the TLS configuration for agents or cache daemons, or nil if nothing is
// configured.
func (t *UpstreamTLS) client(of ...pki.Role) (*tls.Config, error) {
	if t.CA == "" && t.Cert == "" {
		return nil, nil
	}
	files := pki.Files{CA: t.CA, Cert: t.Cert, Key: t.Key}
	c, err := pki.ClientConfig(files, "", of...)
	if err != nil {
		return nil, files.Explain("upstream_tls.ca", "upstream_tls.cert", "upstream_tls.key", err)
	}
	return c, nil
}

// sessions returns the table of sessions, or nil if it is off.
func (c *SessionConfig) sessions() *affinity.Sessions {
	if c.Affinity == "off" {
		return nil
	}
	return affinity.NewSessions(c.Max, c.TTL.Std())
}

func (c *Config) legOptions() leg.Options {
	t := &c.Timeouts
	common := leg.Limits{
		FirstByte: t.FirstByte.Std(), Idle: t.Idle.Std(), Total: t.Total.Std(),
		MaxQueueDecode: c.Router.Admission.MaxQueueDecode,
	}
	own := map[string]leg.Limits{}
	for _, m := range c.Models {
		l := common
		l.FirstByte, l.Idle = cmp.Or(m.FirstByte.Std(), l.FirstByte), cmp.Or(m.Idle.Std(), l.Idle)
		l.Total = cmp.Or(m.Total.Std(), l.Total)
		if m.MaxQueue > 0 {
			l.MaxQueue, l.MaxQueueDecode = m.MaxQueue, 0
		}
		l.MaxQueueDecode = cmp.Or(m.MaxQueueDecode, l.MaxQueueDecode)
		own[m.Name] = l
	}
	return leg.Options{
		Limits: common, ModelLimits: own, FirstByteCold: t.FirstByteCold.Std(),
		PatienceFloor: t.PatienceFloor.Std(), StallFloor: t.StallFloor.Std(),
		MaxNodes: c.Retry.MaxNodes, Feedback: c.Prefix.Feedback, OverloadStatus: c.Router.OverloadStatus,
		PassNvext:     c.Router.PassNvext,
		Disagg:        c.Router.Disagg.settings(),
		RefuseOverSLO: c.Router.Queue.RefuseOverSLO,
		HardSessions:  c.Router.Session.Affinity == "hard",
	}
}

func (c *Config) gatewayLimits(connections int) gateway.Limits {
	l := &c.Limits
	return gateway.Limits{
		MaxBody: int(l.MaxBody), MaxBodyTotal: int(l.MaxBodyTotal), MaxHeader: int(l.MaxHeader),
		MaxConnections: connections, MaxStreams: l.MaxStreams,
		HeaderTimeout: l.HeaderTimeout.Std(), BodyTimeout: l.BodyTimeout.Std(),
		KeepAlive: l.KeepAlive.Std(), SlowReader: l.SlowReader.Std(),
	}
}

// parts returns the settings of cascades as the planner takes them.
func (c *CascadeConfig) parts() plan.Cascades {
	o := plan.Cascades{
		Enabled: c.Enabled, Threshold: c.Threshold, Latency: c.Latency.Std(), MaxHeld: int(c.MaxHeld),
		Measure: logprobs.Measure{Quantile: c.Measure == "quantile", Q: c.Quantile},
	}
	if c.Judge == "stream" {
		o.Early = c.Tokens
	}
	return o
}
