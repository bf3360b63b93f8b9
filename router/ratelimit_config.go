package router

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/internal/rights"
	"github.com/cognitora/dataplane/router/limits/shared"
)

// RateLimitConfig sets how several routers count limits together.
type RateLimitConfig struct {
	Redis         []string        `toml:"redis" flag:"redis" help:"address of Redis, host:port; with sentinel_master the addresses of the sentinels. Empty: each router counts limits alone"`
	Mode          string          `toml:"mode" default:"lease" oneof:"lease|exact" help:"lease: routers take units of limits ahead and spend them without asking; exact: each request asks Redis"`
	OnFailure     string          `toml:"on_failure" default:"local" oneof:"local|open|closed" help:"what becomes of requests while Redis does not answer; local: each router holds them to its part of each limit, by the number of routers that Redis last knew; open: they are only held to what this router counts alone; closed: they get 503"`
	Timeout       config.Duration `toml:"timeout" default:"50ms" help:"most time that a request waits for Redis. The first request that waits longer makes the router do without Redis, until Redis answers again"`
	Master        string          `toml:"sentinel_master" help:"name under which the sentinels watch the master; empty: redis is the address of Redis itself"`
	Username      string          `toml:"username" help:"user of Redis; empty: the default user"`
	Password      string          `toml:"password_file" help:"file with the password of Redis, in its first line; read again for each connection; empty: no password"`
	SentinelsWord string          `toml:"sentinel_password_file" help:"file with the password of the sentinels; empty: no password"`
	Database      int             `toml:"database" default:"0" help:"number of the database of Redis"`
	Connections   int             `toml:"connections" default:"64" help:"most connections to Redis; in exact mode as many requests ask at once"`
	TLS           bool            `toml:"tls" default:"false" help:"reach Redis, and the sentinels, by TLS"`
	CA            string          `toml:"ca" help:"PEM file of the CA that the certificate of Redis must chain to; empty: the system's CAs"`
	Cert          string          `toml:"cert" help:"client certificate for Redis"`
	Key           string          `toml:"key" help:"key of the client certificate"`
}

func (c *RateLimitConfig) validate(bad problem) {
	for i, address := range c.Redis {
		if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
			bad(fmt.Sprintf("ratelimit.redis[%d]", i), "%q is not host:port", address)
		}
	}
	if len(c.Redis) > 1 && c.Master == "" {
		bad("ratelimit.redis", "%d addresses of one Redis; name one, or the sentinels and sentinel_master", len(c.Redis))
	}
	if c.Master != "" && len(c.Redis) == 0 {
		bad("ratelimit.sentinel_master", "needs the sentinels' addresses in redis")
	}
	if c.SentinelsWord != "" && c.Master == "" {
		bad("ratelimit.sentinel_password_file", "needs sentinel_master")
	}
	if len(c.Redis) == 0 {
		c.validateAlone(bad)
	}
	if t := c.Timeout.Std(); t < time.Millisecond || t > 10*time.Second {
		bad("ratelimit.timeout", "%v is not in 1ms..10s", t)
	}
	if c.Database < 0 {
		bad("ratelimit.database", "%d is negative; use 0 or more", c.Database)
	}
	if c.Connections < 1 || c.Connections > 10000 {
		bad("ratelimit.connections", "%d is not in 1..10000", c.Connections)
	}
	if c.Username != "" && c.Password == "" {
		bad("ratelimit.username", "needs password_file")
	}
	if (c.Cert == "") != (c.Key == "") {
		bad("ratelimit.cert", "goes together with ratelimit.key; give both or neither")
	}
	if !c.TLS && (c.CA != "" || c.Cert != "") {
		bad("ratelimit.tls", "false, but ratelimit.ca or ratelimit.cert is set; set tls = true, or leave them out")
	}
}

// validateAlone refuses settings that do nothing without Redis.
func (c *RateLimitConfig) validateAlone(bad problem) {
	for _, s := range []struct {
		key string
		set bool
	}{
		{"mode", c.Mode == "exact"}, {"on_failure", c.OnFailure != shared.Local}, {"username", c.Username != ""},
		{"password_file", c.Password != ""}, {"database", c.Database != 0}, {"tls", c.TLS},
	} {
		if s.set {
			bad("ratelimit."+s.key, "does nothing without ratelimit.redis; name the address of Redis, or leave it out")
		}
	}
}

func (c *RateLimitConfig) examine() error {
	var errs []error
	for _, f := range [][2]string{
		{"ratelimit.password_file", c.Password}, {"ratelimit.sentinel_password_file", c.SentinelsWord},
	} {
		if f[1] == "" {
			continue
		}
		if _, err := rights.ReadFile(f[1]); err != nil {
			errs = append(errs, field(f[0], err))
		}
	}
	if c.TLS {
		errs = append(errs, pki.Files{CA: c.CA, Cert: c.Cert, Key: c.Key}.Examine("ratelimit.ca", "ratelimit.cert",
			"ratelimit.key"))
	}
	return errors.Join(errs...)
}

// open returns the limiter, or nil without Redis. open does not wait for Redis.
func (c *RateLimitConfig) open(log *slog.Logger) (*shared.Limiter, error) {
	if len(c.Redis) == 0 {
		return nil, nil
	}
	o := shared.Options{
		Addresses: c.Redis, Master: c.Master, Username: c.Username, PasswordFile: c.Password,
		SentinelPasswordFile: c.SentinelsWord, DB: c.Database, Exact: c.Mode == "exact", OnFailure: c.OnFailure,
		Timeout: c.Timeout.Std(), PoolSize: c.Connections,
	}
	if c.TLS {
		files := pki.Files{CA: c.CA, Cert: c.Cert, Key: c.Key}
		id, err := pki.Load(files)
		if err != nil {
			return nil, files.Explain("ratelimit.ca", "ratelimit.cert", "ratelimit.key", err)
		}
		o.TLS = id.Outside
	}
	l, err := shared.New(o, log)
	if err != nil {
		return nil, fmt.Errorf("ratelimit: %w", err)
	}
	return l, nil
}

// sharedDefs are the metrics of limits that routers count together.
var sharedDefs = []metric.Def{
	{
		Name: "cgn_router_shared_limits_up",
		Help: "1 while Redis answers, in which routers count limits together ([ratelimit]); 0 while it does not, and " +
			"ratelimit.on_failure says what becomes of requests. All these metrics are missing without ratelimit.redis.",
	},
	{Name: "cgn_router_shared_limits_routers", Help: "Routers that Redis has last heard of, this one included."},
	{
		Name: "cgn_router_shared_limits_round_trips_total", Kind: metric.Counter,
		Help: "Round trips to Redis for limits.",
	},
	{
		Name: "cgn_router_shared_limits_failures_total", Kind: metric.Counter,
		Help: "Round trips to Redis without an answer within ratelimit.timeout, or with an error.",
	},
	{
		Name: "cgn_router_shared_limits_waits_total", Kind: metric.Counter,
		Help: "Requests that found too little leased and waited for Redis (mode lease).",
	},
	{
		Name: "cgn_router_shared_limits_late_total", Kind: metric.Counter,
		Help: "Requests that did not get an answer of Redis in time, or could not wait because 4,096 others did.",
	},
	{
		Name: "cgn_router_shared_limits_unsettled",
		Help: "Requests that have ended and whose use Redis has not been told yet (mode exact).",
	},
	{
		Name: "cgn_router_shared_limits_dropped_total", Kind: metric.Counter,
		Help: "Requests whose use was not told Redis, after three attempts or because 65,536 others waited: what they " +
			"had reserved stays counted until the router ends (mode exact).",
	},
	{
		Name: "cgn_router_shared_limits_alone_total", Kind: metric.Counter, Labels: []string{"on_failure"},
		Help: "Requests decided without Redis: admitted by the router's part of the limits (local), admitted (open) or " +
			"refused with 503 (closed).",
	},
}

func (c *callers) readShared(emit func(def int, value float64, labels ...string)) {
	if c.shared == nil {
		return
	}
	s := c.shared.Stats()
	emit(0, metric.Bool(!s.Away))
	for i, v := range []int64{s.Routers, s.RoundTrips, s.Failures, s.Waits, s.Late + s.Full, s.Unsettled, s.Dropped} {
		emit(1+i, float64(v))
	}
	emit(8, float64(s.Local), shared.Local)
	emit(8, float64(s.Open), shared.Open)
	emit(8, float64(s.Closed), shared.Closed)
}
