// Package kvcached is the cache daemon of a host. The daemon keeps KV blocks in shared memory and
// on SSD. Engines, other hosts and programs of this host read blocks from the daemon.
package kvcached

import (
	"log/slog"
	"path/filepath"

	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/rights"
)

// Config is the configuration of a cache daemon. Every field has a default.
type Config struct {
	Daemon   DaemonConfig   `toml:"kvcached" gone:"persistent trace_bytes" help:"The daemon, its tiers and its sockets for programs of this host."`
	SSD      SSDConfig      `toml:"ssd" gone:"reclaim_rate" help:"The SSD tier, whose size is kvcached.ssd."`
	RESP     RESPConfig     `toml:"resp" gone:"max_clients idle" help:"Redis protocol (RESP2 and RESP3), for engines that speak to redis."`
	S3       S3Config       `toml:"s3" gone:"region max_clients multipart_memory multipart_timeout" help:"A subset of S3, for engines that speak to an object store."`
	QUIC     QUICConfig     `toml:"quic" gone:"initial_packet_size bandwidth_per_host" help:"Transfers of blocks between the caches of different hosts, with certificates on both sides."`
	RDMA     RDMAConfig     `toml:"rdma" help:"RDMA cards (RoCE v2), by which this host reads blocks from the memory of other hosts, and they read from its memory. Only in a program built with -tags rdma. QUIC or TLS decides who may read which block. The traffic of the cards is neither encrypted nor authenticated."`
	GRPC     GRPCConfig     `toml:"grpc" help:"cognitora.v1.Kv for other hosts. Programs of this host use kvcached.sock."`
	Fleet    FleetConfig    `toml:"fleet" gone:"hot_uses max_pulls" help:"Exchange of blocks with other caches, which this cache finds in etcd. It needs endpoints in [etcd] and a listener in [quic]; without them the cache is alone."`
	Lease    LeaseConfig    `toml:"lease" gone:"max_clients max_staging" help:"Bounds on the shared memory that programs of this host may hold."`
	Quotas   []QuotaConfig  `toml:"quota" help:"Bounds on a tenant's or a namespace's share of the tiers; the first entry that matches counts."`
	TLS      TLSConfig      `toml:"tls" help:"This host's certificate. Without one, and with all listeners on loopback, the daemon makes certificates in its data directory."`
	AdminTLS adminport.TLS  `toml:"admin_tls" help:"TLS of the admin port, and the certificates of its clients (docs/auth.md)."`
	Etcd     cluster.Access `toml:"etcd" help:"etcd, where the cache announces itself to the fleet. Without endpoints the cache is alone."`
	Audit    audit.Config   `toml:"audit" help:"The audit log: one JSON line for each administrative act and each refused identity (docs/security.md)."`
	Log      LogConfig      `toml:"log" help:"The log, which goes to standard error."`

	Logger *slog.Logger `toml:"-"` // nil means slog.Default
}

// DaemonConfig is the [kvcached] section.
type DaemonConfig struct {
	Data          string          `toml:"data" default:"/var/lib/cognitora/kvcached" flag:"data" help:"directory of the SSD tier and of the daemon's state; the daemon makes it if it is absent, and locks it"`
	RAM           config.Size     `toml:"ram" default:"1GiB" flag:"ram" help:"size of the shared memory, which bounds the blocks in RAM"`
	SSD           config.Size     `toml:"ssd" default:"4GiB" flag:"ssd" help:"bytes of disk for the SSD tier, all its files included; 0: no SSD tier"`
	Sock          string          `toml:"sock" flag:"sock" help:"path of the gRPC socket; the lease socket kv-lease.sock is beside it; empty: kv.sock in /run/cognitora if the daemon can write there or make that directory, as root can, else in data"`
	Group         int             `toml:"socket_group" default:"-1" help:"id of the group whose members may use the Unix sockets, including those of RESP and S3; -1: the daemon's group. If sockets lie in kvcached.data, the daemon lets the group enter that directory, but not list it, unless a group has rights there already"`
	Admin         string          `toml:"admin" default:"127.0.0.1:9093" flag:"admin" help:"address of the admin port: /healthz, /readyz, /metrics, /debug/pprof"`
	InsecureAdmin bool            `toml:"insecure_admin" default:"false" flag:"insecure-admin" help:"allow admin beyond loopback without client certificates (admin_tls.client_ca); /debug shows internals"`
	Insecure      bool            `toml:"insecure_listen" default:"false" flag:"insecure-listen" help:"allow resp and s3 beyond loopback without TLS; they still need users or keys"`
	CacheID       string          `toml:"cache_id" flag:"cache-id" help:"name of the cache in the fleet, letters, digits and . _ : -; empty: the host's name"`
	Advertise     string          `toml:"advertise" flag:"advertise" help:"host name or address at which other hosts reach the listeners; empty: each listener's own address, with the host's name in place of a wildcard"`
	Heartbeat     config.Duration `toml:"heartbeat" default:"5s" help:"time between two writes of the cache's state; its lease lasts three of them"`
	DrainTimeout  config.Duration `toml:"drain_timeout" default:"10s" flag:"drain-timeout" help:"time for running operations to finish when the daemon is stopped; then they are cut; 0: at once"`
	Trace         string          `toml:"trace" flag:"trace" help:"file for a recording of accesses, which cgn-ctl kv trace reads; it has hashes instead of names; an existing recording is continued, up to 256 MiB; empty: none"`
}

// SSDConfig is the [ssd] section.
type SSDConfig struct {
	Index       string      `toml:"index" default:"disk" oneof:"disk|memory" help:"where the index of the SSD tier lies besides RAM; memory: nowhere, which saves its writes, for development: the SSD tier is empty after each start, and durable writes are refused. A directory that has an index on disk is refused then"`
	DailyWrites config.Size `toml:"daily_writes" default:"0" help:"bytes that may be written to SSD in a day (UTC); beyond them only durable blocks are written; 0: no bound"`
	KeyFile     string      `toml:"key_file" empty:"refused" help:"file with a key of 32 bytes, or 64 hexadecimal digits, that seals payloads with AES-256-GCM; namespaces (models, tenants), clients' keys, attributes, lengths and checksums are never sealed; left out: payloads are not sealed"`
}

// RESPConfig is the [resp] section.
type RESPConfig struct {
	Listen string          `toml:"listen" flag:"resp" help:"address of the Redis protocol (host:port, or unix:///path), such as 127.0.0.1:6380; empty: off"`
	TLS    bool            `toml:"tls" default:"false" help:"speak TLS, with the certificate of [tls]"`
	Users  []UserConfig    `toml:"users" help:"Users for AUTH. Without users the port must be on loopback or a Unix socket, and everybody who reaches it may use it."`
	Stall  config.Duration `toml:"stall" default:"60s" help:"time a client has to send the rest of a command, and to read a reply"`
}

// UserConfig is a [[resp.users]] table.
type UserConfig struct {
	Name         string `toml:"name" default:"default" help:"name for AUTH; default is the user of a password without a name"`
	PasswordFile string `toml:"password_file" help:"file with the user's password"`
	Tenant       string `toml:"tenant" help:"tenant whose keys and model blocks the user may read and write, and no others; empty: those without a tenant, as our connector for vLLM writes them"`
	ReadOnly     bool   `toml:"read_only" default:"false" help:"refuse commands that write"`
}

// S3Config is the [s3] section.
type S3Config struct {
	Listen  string          `toml:"listen" flag:"s3" help:"address of the S3 subset (host:port, or unix:///path), such as 127.0.0.1:9000; empty: off"`
	TLS     bool            `toml:"tls" default:"false" help:"speak TLS, with the certificate of [tls]"`
	Keys    []KeyConfig     `toml:"keys" help:"Access keys. Without keys the port must be on loopback or a Unix socket, and everybody who reaches it may use it."`
	Domains []string        `toml:"domains" help:"names of the server, besides localhost, that clients use as bucket.name/key; with any other Host the path begins with the bucket"`
	Durable bool            `toml:"durable" default:"false" help:"answer a PUT only when the object is on disk"`
	Timeout config.Duration `toml:"timeout" default:"30s" help:"time a client has for each MiB of a body"`
}

// KeyConfig is a [[s3.keys]] table.
type KeyConfig struct {
	Access     string `toml:"access" help:"access key id"`
	SecretFile string `toml:"secret_file" help:"file with the secret access key"`
	Tenant     string `toml:"tenant" help:"tenant whose objects and model blocks the key may read and write, and no others; empty: objects without a tenant, and the model blocks of every tenant"`
	ReadOnly   bool   `toml:"read_only" default:"false" help:"refuse requests that write"`
}

// QUICConfig is the [quic] section.
type QUICConfig struct {
	Listen    string          `toml:"listen" flag:"quic" help:"UDP address (host:port) of cgn-kv/1, such as 127.0.0.1:7072; empty: off"`
	TLSListen string          `toml:"tls_listen" flag:"tls-lane" help:"TCP address of cgn-kv/1 over TLS, for networks where UDP is slow or blocked; empty: the address of listen; off: none"`
	Stripes   int             `toml:"stripes" default:"4" help:"connections to another host over which a block of 1 MiB or more is pulled, each with its own UDP socket; 1 to 16. With 1 % loss and 20 ms each way, 16 were 2.0 to 2.5 times as fast as 4, and without loss no faster (make check-net). Each has the windows that rate and rtt set"`
	Rate      config.Size     `toml:"rate" default:"1250MB" help:"bytes per second that one connection may reach; rate and rtt set the windows"`
	RTT       config.Duration `toml:"rtt" default:"2ms" help:"round trip between hosts"`
	Total     config.Size     `toml:"bandwidth" default:"0" help:"bytes per second to and from all other hosts together, each way; 0: no bound"`
	InFlight  config.Size     `toml:"max_in_flight" default:"1GiB" help:"most bytes of payload of all running operations; beyond it other caches get a busy answer and try again"`
}

// RDMAConfig is the [rdma] section.
type RDMAConfig struct {
	Devices  []string        `toml:"devices" help:"names of RDMA devices, such as mlx5_0, or auto for all devices of the host; at most 8. Each locks all of kvcached.ram in memory. cgn-ctl rdma check says what a device lacks. Empty: no RDMA"`
	Trusted  []string        `toml:"trusted_networks" help:"networks, such as 10.1.0.0/16, whose hosts may see and change all traffic between devices; with fleet.lane = auto, RDMA is used only if the devices of both hosts have addresses in these networks; empty: no RDMA with auto"`
	MinBlock config.Size     `toml:"min_block" default:"64KiB" help:"smallest block that is read by RDMA; smaller ones come over QUIC or TLS if their length is known in advance. With soft-RoCE in a virtual machine, RDMA was faster from 64KiB on, also for one block at a time (make perf-rdma)"`
	Grant    config.Duration `toml:"grant" was:"rdma.lease" default:"5s" help:"time another host has to read a granted block of this host; the block stays in RAM meanwhile. Granted blocks count in quic.max_in_flight"`
}

// GRPCConfig is the [grpc] section.
type GRPCConfig struct {
	Listen   string `toml:"listen" flag:"grpc" help:"TCP address of cognitora.v1.Kv with certificates on both sides; empty: off"`
	Announce bool   `toml:"announce_sock" default:"false" help:"announce kvcached.sock if listen is empty; only for a fleet whose routers are all on this host"`
}

// FleetConfig is the [fleet] section.
type FleetConfig struct {
	Replicas      int             `toml:"replicas" default:"0" help:"number of other hosts that get a copy of a hot block, which has been used 8 times here; 0: none"`
	LocateTimeout config.Duration `toml:"locate_timeout" default:"100ms" help:"time to find the host that has a block; after it the block is a miss"`
	AnswerTimeout config.Duration `toml:"answer_timeout" default:"200ms" help:"time after which a cache that has not answered gets no requests until it answers a probe; at least four round trips"`
	PullTimeout   config.Duration `toml:"pull_timeout" default:"10s" help:"time to pull a block from another host, with repeated requests to a busy host; after it the block is a miss"`
	MaxLocations  int             `toml:"max_locations" default:"1048576" help:"most blocks whose holders this cache remembers for the fleet, about 100 bytes each; other hosts cannot find further blocks"`
	Lane          string          `toml:"lane" default:"auto" oneof:"auto|rdma|quic|tls" help:"lane to other caches. auto: QUIC, or TLS if it is faster or QUIC does not get through; large blocks come by RDMA if both hosts have devices in rdma.trusted_networks and a test read succeeds. rdma: large blocks come by RDMA, and are granted to other caches, on any network; while RDMA fails, blocks come as with auto and the log has errors. quic and tls: that lane, without RDMA"`
	Peers         []PeerConfig    `toml:"peers" help:"Caches to which this cache uses another lane than fleet.lane, one table each."`
}

// PeerConfig is a [[fleet.peers]] table.
type PeerConfig struct {
	Cache string `toml:"cache" help:"name of the other cache in the fleet: its kvcached.cache_id"`
	Lane  string `toml:"lane" default:"auto" oneof:"auto|rdma|quic|tls" help:"lane of requests to this cache, as fleet.lane; RDMA grants to it follow fleet.lane"`
}

// LeaseConfig is the [lease] section.
type LeaseConfig struct {
	Duration        config.Duration `toml:"duration" default:"5s" help:"time that a lease lasts from its start or its last renewal"`
	MaxLeased       config.Size     `toml:"max_leased" default:"0" help:"most bytes that one user may lease at once; 0: half of kvcached.ram"`
	MaxStagingTotal config.Size     `toml:"max_staging_total" default:"1GiB" help:"most memory in which clients prepare blocks, in addition to kvcached.ram; one connection may have 128 MiB of it"`
}

// QuotaConfig is a [[quota]] table.
type QuotaConfig struct {
	Tenant    string      `toml:"tenant" help:"tenant of the blocks; empty: any"`
	Model     string      `toml:"model" help:"model of the blocks; empty: any"`
	Namespace string      `toml:"namespace" help:"canonical namespace of the blocks; empty: any"`
	RAM       config.Size `toml:"ram" default:"0" help:"most bytes of RAM for these blocks together; beyond it some of them are evicted; 0: no bound"`
	SSD       config.Size `toml:"ssd" default:"0" help:"most bytes of SSD for these blocks together, in whole pages of 4 KiB; at the bound none of them is written, and durable writes are refused, until some are deleted or evicted; 0: no bound"`
}

// TLSConfig is the [tls] section.
type TLSConfig struct {
	CA   string `toml:"ca" empty:"refused" help:"PEM file with the CA of the fleet's certificates"`
	Cert string `toml:"cert" help:"this daemon's certificate, of the role kvcached"`
	Key  string `toml:"key" help:"key of the certificate"`
}

// LogConfig is the [log] section.
type LogConfig struct {
	Level  string `toml:"level" default:"info" flag:"log-level" oneof:"debug|info|warn|error" help:"least severity that is logged"`
	Format string `toml:"format" default:"text" flag:"log-format" oneof:"text|json" help:"how log lines are written"`
}

// runDir is the default directory of the daemons' sockets. Tests have another.
var runDir = "/run/cognitora"

// Sockets returns the paths of the gRPC socket and of the lease socket beside it.
func (c *Config) Sockets() (grpc, lease string) {
	grpc = c.Daemon.Sock
	if grpc == "" {
		dir := c.Daemon.Data
		if rights.Makeable(runDir) == nil {
			dir = runDir
		}
		grpc = filepath.Join(dir, "kv.sock")
	}
	if abs, err := filepath.Abs(grpc); err == nil {
		grpc = abs
	}
	return grpc, filepath.Join(filepath.Dir(grpc), "kv-lease.sock")
}

// tlsLane is the TCP address of the TLS lane; empty: there is no TLS lane.
func (c *QUICConfig) tlsLane() string {
	switch c.TLSListen {
	case "":
		return c.Listen
	case "off":
		return ""
	}
	return c.TLSListen
}

// onDisk tells whether there is an SSD tier.
func (c *Config) onDisk() bool { return c.Daemon.SSD > 0 }
