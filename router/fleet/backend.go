package fleet

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/apikey"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/rights"
	"github.com/cognitora/dataplane/router/kvevents"
)

// Backend is one static engine, or several behind one DNS name.
type Backend struct {
	URL           string // http://host:port, https://host:port or unix:///path, without /v1
	ID            string // node id; empty = host:port
	Model         string // the one model to serve, under this name; empty = the engine's own list
	Role          string // prefill, decode or both; empty = both
	MaxConcurrent int    // requests at once; 0 = no limit
	APIKeyFile    string // file whose content is sent as Authorization: Bearer
	CA            string // PEM file that an https certificate is checked against; empty = the system's
	Cert          string // PEM file of the client certificate shown to an https engine; empty = none
	CertKey       string // PEM file with the key of Cert
	KV            string // gRPC address of the host's cache daemon: host:port, or unix:///path; empty: none
	KVEvents      string // address of the engine's KV events: tcp://host:port, ipc:///path; empty: none
	KVReplay      string // address where the engine repeats missed KV events; empty: none
	Connector     string // how the engine hands KV blocks over; empty: see Info.Hands
	Bootstrap     string // address of its bootstrap server: host:port, or :port on the engine's host; empty: usual port

	Labels           []string // words such as gpu=h100
	Experts          cluster.Experts
	MaxBatchedTokens int // tokens that the engine computes in one step; 0: unknown
	DataParallel     int // data-parallel ranks of the engine; 0: as its metrics say
}

// backendOptions lists the options that may follow the URL in a --backend flag.
const backendOptions = "id=, model=, role=, max_concurrent=, api_key_file=, ca=, cert=, cert_key=, kv=, kv-events=, kv-replay=, " +
	"connector=, bootstrap=, label=, expert=, max_batched_tokens=, data_parallel_size="

// ParseBackend reads a URL with options, as in http://h:8001,id=n1,label=gpu=h100, and checks the
// result with Check. backendOptions lists the options. Only label and
// expert may be repeated.
func ParseBackend(flag string) (Backend, error) {
	parts := strings.Split(flag, ",")
	b := Backend{URL: strings.TrimSpace(parts[0])}
	seen := map[string]bool{}
	for _, option := range parts[1:] {
		name, value, found := strings.Cut(strings.TrimSpace(option), "=")
		if _, _, err := net.SplitHostPort(name); err == nil || strings.Contains(name, "://") {
			return b, several(flag)
		}
		if !found || value == "" {
			return b, fmt.Errorf("backend %q: option %q has no value; write %s=VALUE", address.Redact(b.URL), option,
				name)
		}
		name = strings.ReplaceAll(name, "-", "_")
		if seen[name] && name != "label" && name != "expert" {
			return b, fmt.Errorf("backend %q: option %s is given twice; leave one out", address.Redact(b.URL), name)
		}
		seen[name] = true
		if err := b.set(name, value); err != nil {
			return b, fmt.Errorf("backend %q: %w", address.Redact(b.URL), err)
		}
	}
	return b, b.Check()
}

// several returns the error for a flag that holds the URLs of several engines.
func several(flag string) error {
	return fmt.Errorf("backend %q: this is more than one URL; give each engine a --backend or a [[backend]] table "+
		"of its own, or CGN_ROUTER_BACKENDS with spaces between them", address.Redact(flag))
}

func (b *Backend) set(name, value string) error {
	text := map[string]*string{
		"id": &b.ID, "model": &b.Model, "role": &b.Role, "api_key_file": &b.APIKeyFile, "ca": &b.CA, "cert": &b.Cert,
		"cert_key": &b.CertKey, "kv": &b.KV,
		"kv_events": &b.KVEvents, "kv_replay": &b.KVReplay, "connector": &b.Connector, "bootstrap": &b.Bootstrap,
	}[name]
	if text != nil {
		*text = value
		return nil
	}
	switch name {
	case "label":
		b.Labels = append(b.Labels, value)
	case "expert":
		b.Experts = append(b.Experts, value)
	case "labels":
		return fmt.Errorf("option labels is not known; write label= once for each label")
	case "experts":
		return fmt.Errorf("option experts is not known; write expert= once for each expert or range")
	case "max_concurrent":
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 {
			return fmt.Errorf("option max_concurrent=%s: want a whole number, 0 for no limit", value)
		}
		b.MaxConcurrent = n
	case "max_batched_tokens":
		n, err := strconv.Atoi(value)
		if err != nil {
			return fmt.Errorf("option max_batched_tokens=%s: want a whole number, 0 for unknown", value)
		}
		b.MaxBatchedTokens = n
	case "data_parallel_size":
		n, err := strconv.Atoi(value)
		if err != nil {
			return fmt.Errorf("option data_parallel_size=%s: want a whole number, 0 for as the engine's metrics say", value)
		}
		b.DataParallel = n
	case "api_key", "key":
		return fmt.Errorf("option %s is not known: command lines are seen by others; put the key into a file and name "+
			"that with api_key_file=", name)
	default:
		return fmt.Errorf("option %s is not known; there are %s", name, backendOptions)
	}
	return nil
}

// Check validates b without looking at files or the network.
func (b Backend) Check() error {
	fail := func(err error) error { return fmt.Errorf("backend %q: %w", address.Redact(b.URL), err) }
	if b.URL == "" {
		return errors.New("url is missing; want http://host:port, https://host:port or unix:///path")
	}
	if strings.Count(b.URL, "://") > 1 {
		return several(b.URL)
	}
	at, err := address.Parse(b.URL)
	if err != nil {
		return fail(err)
	}
	if base := at.BasePath + "/"; strings.HasSuffix(base, "/v1/") || strings.HasSuffix(base, "/completions/") ||
		strings.HasSuffix(base, "/v1/models/") {
		return fail(errors.New("give the server's root: /v1 is added by the router"))
	}
	if b.ID != "" {
		if err := cluster.CheckNodeID(b.ID); err != nil {
			return fail(fmt.Errorf("option id: %w", err))
		}
	}
	if _, err := cluster.ParseRole(b.Role); err != nil {
		return fail(fmt.Errorf("option role: %w", err))
	}
	if b.MaxConcurrent < 0 || b.MaxConcurrent > 1<<20 {
		return fail(fmt.Errorf("option max_concurrent: %d is not in 0..%d; 0 is no limit", b.MaxConcurrent, 1<<20))
	}
	if err := cluster.CheckBatch(b.MaxBatchedTokens); err != nil {
		return fail(fmt.Errorf("option max_batched_tokens: %w", err))
	}
	if err := cluster.CheckDataParallel(b.DataParallel); err != nil {
		return fail(fmt.Errorf("option data_parallel_size: %w", err))
	}
	if err := cluster.CheckLabels(b.Labels); err != nil {
		return fail(fmt.Errorf("option label: %w", err))
	}
	if err := b.Experts.Check(); err != nil {
		return fail(fmt.Errorf("option expert: %w", err))
	}
	if b.CA+b.Cert+b.CertKey != "" && !at.TLS {
		return fail(errors.New("options ca, cert and cert_key are for https URLs only"))
	}
	if (b.Cert == "") != (b.CertKey == "") {
		return fail(errors.New("options cert and cert_key go together; give both or neither"))
	}
	if err := (&cluster.CacheHealth{CacheID: "kv", GRPC: b.KV}).Check(); err != nil {
		return fail(fmt.Errorf("option kv: %q is neither host:port nor unix:///path", b.KV))
	}
	if err := b.checkEvents(); err != nil {
		return fail(err)
	}
	if err := b.checkConnector(at.Network); err != nil {
		return fail(err)
	}
	return nil
}

// checkConnector validates how the engine hands blocks over. The kind of the engine is not known
// here; see member.wrong.
func (b Backend) checkConnector(network string) error {
	if err := cluster.CheckConnector("", b.Connector); err != nil {
		return fmt.Errorf("option connector: %w", err)
	}
	if err := cluster.CheckBootstrap(b.Bootstrap); err != nil {
		return fmt.Errorf("option bootstrap: %w, nor :port on the host of the url", err)
	}
	hostless := strings.HasPrefix(b.Bootstrap, ":") ||
		b.Bootstrap == "" && b.Role != string(cluster.RoleDecode) && cluster.NeedsBootstrap(b.Connector)
	switch name := b.dnsName(); {
	case b.Bootstrap != "" && b.Connector != "" && !cluster.NeedsBootstrap(b.Connector):
		return fmt.Errorf("option bootstrap is for the connectors sglang and mooncake; %s has no bootstrap server",
			b.Connector)
	case network == "unix" && hostless:
		return errors.New("option " + noBootstrap)
	case name != "" && b.Bootstrap != "" && !hostless:
		return fmt.Errorf("option bootstrap: %q may be several engines, each with a bootstrap server of its own; give :port, "+
			"which is on each engine's host", name)
	}
	return nil
}

// checkEvents validates the addresses of the engine's KV events.
func (b Backend) checkEvents() error {
	if b.KVEvents == "" {
		if b.KVReplay != "" {
			return errors.New("option kv-replay goes together with kv-events")
		}
		return nil
	}
	if name := b.dnsName(); name != "" {
		return fmt.Errorf("option kv-events: %q may be several engines, each with events of its own; give a backend "+
			"for each, by its address", name)
	}
	return kvevents.Check(b.KVEvents, b.KVReplay, b.DataParallel)
}

// CheckBackends validates each backend. CheckBackends also checks that no two backends are the same
// node.
func CheckBackends(backends []Backend) error {
	ids := map[string]string{}
	for _, b := range backends {
		if err := b.Check(); err != nil {
			return err
		}
		id := b.NodeID()
		other, taken := ids[id]
		if taken && other == b.URL {
			return fmt.Errorf("backend %q is given twice; leave one out, or give one of them another id=", other)
		}
		if taken {
			return fmt.Errorf("backends %q and %q are both node %q; give one of them another id=", other, b.URL, id)
		}
		ids[id] = b.URL
	}
	return nil
}

// NodeID returns the id of the backend's node. For a DNS name with several addresses it is the
// beginning of each node's id.
func (b Backend) NodeID() string {
	at, err := address.Parse(b.URL)
	if err != nil {
		return cmp.Or(b.ID, b.URL)
	}
	return cmp.Or(b.ID, at.Addr)
}

// dnsName returns the name to look up, or "" when the URL holds an address. localhost counts as an
// address, because its two addresses are one server.
func (b Backend) dnsName() string {
	at, err := address.Parse(b.URL)
	if err != nil || at.Network != "tcp" {
		return ""
	}
	host, _, err := net.SplitHostPort(at.Addr)
	if err != nil || host == "localhost" {
		return ""
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	return host
}

// endpoint is one node of a backend.
type endpoint struct {
	id       string
	target   relay.Target
	identity string // the node's URL and address
	secrets  string // digest of key, CA and certificate; a change does not replace the node
	backend  Backend
}

// prepared is a backend together with the contents of its files.
type prepared struct {
	Backend
	target  relay.Target
	secrets string
}

// endpoints returns the backend's nodes: one for each resolved address of a DNS name, otherwise
// exactly one.
func (p *prepared) endpoints(resolved []netip.Addr) []endpoint {
	e := endpoint{id: p.NodeID(), target: p.target, identity: p.URL, secrets: p.secrets, backend: p.Backend}
	if p.dnsName() == "" {
		return []endpoint{e}
	}
	_, port, _ := net.SplitHostPort(p.target.Addr) // dnsName has split it
	out := make([]endpoint, 0, len(resolved))
	for _, ip := range resolved {
		one := e
		one.id += "@" + ip.String()
		one.target.Addr = net.JoinHostPort(ip.String(), port)
		one.identity += " " + one.target.Addr
		out = append(out, one)
	}
	return out
}

// target reads the files that b names. secrets is a digest of the files' contents.
func (b Backend) target() (t relay.Target, secrets string, err error) {
	at, err := address.Parse(b.URL)
	if err != nil {
		return t, "", err
	}
	t = relay.Target{Network: at.Network, Addr: at.Addr, Host: at.Host, BasePath: at.BasePath}
	digest := sha256.New()
	if at.TLS {
		id, err := pki.Load(b.files())
		if err != nil {
			return t, "", fmt.Errorf("backend %q: %w", b.URL, b.files().Explain("option ca", "option cert",
				"option cert_key", err))
		}
		host, _, _ := net.SplitHostPort(at.Addr)
		t.TLS = id.Outside(host)
		for _, name := range []string{b.CA, b.Cert} {
			text, _ := rights.ReadFile(name) // Load has read it; what changes now is used by the next handshake
			fmt.Fprintf(digest, "%d %s", len(text), text)
		}
	}
	if b.APIKeyFile != "" {
		key, err := apikey.Read(b.APIKeyFile)
		if err != nil {
			return t, "", fmt.Errorf("backend %q: option api_key_file: %w; name %s", b.URL, err, keyWanted)
		}
		t.Authorization = "Bearer " + key
	}
	digest.Write([]byte(t.Authorization))
	return t, string(digest.Sum(nil)), nil
}

// files are those for TLS with the engine.
func (b Backend) files() pki.Files { return pki.Files{CA: b.CA, Cert: b.Cert, Key: b.CertKey} }
