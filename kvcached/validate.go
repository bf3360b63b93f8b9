package kvcached

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
)

// Smallest sizes of the tiers.
const (
	leastRAM = 1 << 20
	leastSSD = 128 << 20
)

// maxStripes is the number of connections over which a block may be pulled. A cache accepts 64
// connections from one host, which leaves room for the TLS lane.
const maxStripes = 16

// maxGroup is the highest id of a group. The kernel reads the next number as no group.
const maxGroup = 1<<32 - 2

// maxReplicas is the number of other hosts that a hot block may be copied to.
const maxReplicas = 16

// problems are the errors in a configuration.
type problems []error

func (p *problems) add(field, format string, args ...any) {
	*p = append(*p, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
}

// Validate returns an error for each field that cannot work, with the fix.
func (c *Config) Validate() error {
	var p problems
	c.validateDaemon(&p)
	c.validateListeners(&p)
	c.validateTLS(&p)
	c.validateBounds(&p)
	c.validateUsers(&p)
	c.validateRDMA(&p)
	return errors.Join(p...)
}

func (c *Config) validateDaemon(p *problems) {
	d := &c.Daemon
	if d.Data == "" && (c.onDisk() || d.Sock == "") {
		p.add("kvcached.data", "empty; name a directory with --data DIR")
	}
	if d.RAM < leastRAM || d.RAM > ram.MaxArena {
		p.add("kvcached.ram", "%s: must be %s to %s", d.RAM, config.Size(leastRAM), config.Size(ram.MaxArena))
	}
	if d.SSD != 0 && d.SSD < leastSSD {
		p.add("kvcached.ssd", "%s is too little; give 128MiB or more, or 0 for no SSD tier", d.SSD)
	}
	if d.CacheID != "" {
		if err := cluster.CheckCacheID(d.CacheID); err != nil {
			p.add("kvcached.cache_id", "%v", err)
		}
	}
	if d.Advertise != "" && !address.IsHost(d.Advertise) {
		p.add("kvcached.advertise", "%q is no host; give a host name or an address without a port, such as "+
			"gpu1.example or 10.0.0.7", d.Advertise)
	}
	if d.Heartbeat.Std().Milliseconds() < 100 {
		p.add("kvcached.heartbeat", "%s is too short; use 100ms or more, 5s suits most fleets", d.Heartbeat)
	}
	if d.Group < -1 || d.Group > maxGroup {
		p.add("kvcached.socket_group", "%d: must be 0 to %d, or -1 for the daemon's group", d.Group, maxGroup)
	}
	sock, lease := c.Sockets()
	if sock == lease {
		p.add("kvcached.sock", "%q is the name of the lease socket, which is beside it; give another one, such as "+
			"kv.sock, with --sock", sock)
	}
	for _, path := range []string{sock, lease} {
		if len(path) > 100 {
			p.add("kvcached.sock", "%q is too long for a socket; give a path of 100 bytes or less with --sock", path)
		}
	}
}

// listeners returns the addresses that c names, with the conditions for addresses beyond loopback.
func (c *Config) listeners() []listener {
	const certificates = "set tls.ca, tls.cert and tls.key (cgn-ctl pki bootstrap or join makes them)"
	const orInsecure = "; or insecure_listen = true (--insecure-listen) instead of TLS if the network is trusted"
	d := &c.Daemon
	return []listener{
		{field: "kvcached.admin", address: d.Admin, required: true, tcp: true, allowed: c.AdminTLS.Certified() || d.InsecureAdmin, fix: "listen on loopback, or set admin_tls.client_ca, or insecure_admin = true (--insecure-admin) if the network is trusted"},
		{field: "resp.listen", address: c.RESP.Listen, tcp: true, allowed: len(c.RESP.Users) > 0 && (c.RESP.TLS || d.Insecure), fix: "add [[resp.users]] with a password_file, and resp.tls = true with tls.cert" + orInsecure},
		{field: "s3.listen", address: c.S3.Listen, tcp: true, allowed: len(c.S3.Keys) > 0 && (c.S3.TLS || d.Insecure), fix: "add [[s3.keys]] with a secret_file, and s3.tls = true with tls.cert" + orInsecure},
		{field: "quic.listen", address: c.QUIC.Listen, noSocket: true, allowed: c.TLS.CA != "", fix: certificates},
		{field: "quic.tls_listen", address: c.QUIC.tlsLane(), noSocket: true, tcp: true, allowed: c.TLS.CA != "", fix: certificates},
		{field: "grpc.listen", address: c.GRPC.Listen, noSocket: true, tcp: true, allowed: c.TLS.CA != "", fix: certificates},
	}
}

// listener is an address of the configuration.
type listener struct {
	field, address string
	required       bool   // must not be empty
	noSocket       bool   // other hosts connect here, so a Unix socket is useless
	tcp            bool   // listens on TCP; no two such listeners may have the same port
	allowed        bool   // the address may be beyond loopback
	fix            string // the change that allows this
}

func (c *Config) validateListeners(p *problems) {
	all := c.listeners()
	for i, l := range all {
		if l.address == "" {
			if l.required {
				p.add(l.field, "empty; give host:port, or 127.0.0.1:0 for a free port")
			}
			continue
		}
		if l.noSocket && strings.HasPrefix(l.address, "unix:") {
			p.add(l.field, "%q is not host:port; other hosts come here", l.address)
			continue
		}
		if err := listen.Check(l.address); err != nil {
			p.add(l.field, "%v", err)
			continue
		}
		if !l.allowed && !listen.Loopback(l.address) {
			p.add(l.field, "%q is reachable from other hosts without authentication; %s", l.address, l.fix)
		}
		for _, other := range all[:i] {
			if l.tcp && other.tcp && listen.Overlap(l.address, other.address) {
				p.add(l.field, "%q cannot be listened on next to %s, %q; give it another port", l.address, other.field,
					other.address)
			}
		}
	}
}

func (c *Config) validateTLS(p *problems) {
	t := &c.TLS
	if (t.Cert == "") != (t.Key == "") {
		p.add("tls.cert", "goes together with tls.key; give both or neither")
	}
	if t.CA != "" && t.Cert == "" {
		p.add("tls.ca", "needs tls.cert and tls.key")
	}
	for _, l := range []struct {
		field string
		on    bool
	}{{"resp.tls", c.RESP.TLS}, {"s3.tls", c.S3.TLS}} {
		if l.on && t.Cert == "" {
			p.add(l.field, "needs tls.cert and tls.key")
		}
	}
	if t.Cert != "" && t.CA == "" && c.peers() {
		p.add("tls.ca", "empty, and other hosts' certificates are checked against it; give the fleet's ca.crt")
	}
}

// peers tells whether other hosts may connect.
func (c *Config) peers() bool {
	return c.QUIC.Listen != "" || c.QUIC.tlsLane() != "" || c.GRPC.Listen != ""
}

func (c *Config) validateBounds(p *problems) {
	for _, f := range []struct {
		field string
		value int64
	}{
		{"resp.stall", int64(c.RESP.Stall)}, {"s3.timeout", int64(c.S3.Timeout)}, {"lease.duration", int64(c.Lease.Duration)}, {"quic.rate", int64(c.QUIC.Rate)}, {"quic.rtt", int64(c.QUIC.RTT)},
		{"quic.max_in_flight", int64(c.QUIC.InFlight)},
		{"fleet.locate_timeout", int64(c.Fleet.LocateTimeout)}, {"fleet.pull_timeout", int64(c.Fleet.PullTimeout)}, {"fleet.answer_timeout", int64(c.Fleet.AnswerTimeout)},
		{"fleet.max_locations", int64(c.Fleet.MaxLocations)},
	} {
		if f.value < 1 {
			p.add(f.field, "must be above 0")
		}
	}
	if c.QUIC.Stripes < 1 || c.QUIC.Stripes > maxStripes {
		p.add("quic.stripes", "%d: must be 1 to %d", c.QUIC.Stripes, maxStripes)
	}
	if c.Fleet.Replicas > 0 && !c.inFleet() {
		p.add("fleet.replicas", "%d: there is no other host without etcd.endpoints and quic.listen; set them, or leave "+
			"replicas out", c.Fleet.Replicas)
	}
	for i, name := range c.S3.Domains {
		if strings.Trim(name, ".") == "" || strings.ContainsAny(name, " \t/:@") {
			p.add(fmt.Sprintf("s3.domains[%d]", i), "%q is not a host name; give the name alone, as in s3.example.com", name)
		}
	}
	if c.Fleet.Replicas < 0 || c.Fleet.Replicas > maxReplicas {
		p.add("fleet.replicas", "%d: must be 0 to %d", c.Fleet.Replicas, maxReplicas)
	}
	for i, peer := range c.Fleet.Peers {
		if err := cluster.CheckCacheID(peer.Cache); err != nil {
			p.add(fmt.Sprintf("fleet.peers[%d].cache", i), "%v", err)
		}
	}
	c.validateQuotas(p)
}

func (c *Config) validateQuotas(p *problems) {
	for i, q := range c.Quotas {
		field := fmt.Sprintf("quota[%d]", i)
		if q.Tenant == "" && q.Model == "" && q.Namespace == "" {
			p.add(field, "names no tenant, model or namespace; give one")
		}
		if _, err := block.ParseNamespace(q.Namespace); q.Namespace != "" && err != nil {
			p.add(field+".namespace", "%q: %v; clients' keys are in key1;resp.DATABASE;TENANT and key1;s3.BUCKET;TENANT, "+
				"and the last ; stays without a tenant", q.Namespace, err)
		}
		// An entry without bounds exempts its blocks from the entries after it.
		if !slices.ContainsFunc(c.Quotas[i:], func(o QuotaConfig) bool { return o.RAM > 0 || o.SSD > 0 }) {
			p.add(field, "bounds nothing; give ram or ssd")
		}
		if q.RAM > c.Daemon.RAM {
			p.add(field+".ram", "%s is more than kvcached.ram, %s; give less, or 0 for no bound", q.RAM, c.Daemon.RAM)
		}
		if c.onDisk() && q.SSD > c.Daemon.SSD {
			p.add(field+".ssd", "%s is more than kvcached.ssd, %s; give less, or 0 for no bound", q.SSD, c.Daemon.SSD)
		}
	}
}

func (c *Config) validateUsers(p *problems) {
	users, keys := map[string]int{}, map[string]int{}
	for i, u := range c.RESP.Users {
		if u.Name == "" || u.PasswordFile == "" {
			p.add(fmt.Sprintf("resp.users[%d]", i), "needs a name and a password_file")
		}
		if first, there := users[u.Name]; there {
			p.add(fmt.Sprintf("resp.users[%d].name", i), "%q is that of resp.users[%d], too; give each user a name "+
				"of its own", u.Name, first)
		} else {
			users[u.Name] = i
		}
	}
	for i, k := range c.S3.Keys {
		if k.Access == "" || k.SecretFile == "" {
			p.add(fmt.Sprintf("s3.keys[%d]", i), "needs access and secret_file")
		}
		if first, there := keys[k.Access]; there {
			p.add(fmt.Sprintf("s3.keys[%d].access", i), "%q is that of s3.keys[%d], too; give each key an access of "+
				"its own", k.Access, first)
		} else {
			keys[k.Access] = i
		}
	}
}
