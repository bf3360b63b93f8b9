package trust

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/freeport"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/perf/process"
)

// Limits of the tenants.
const (
	poorBudget = 4000 // tokens of each tenant of poor
	perMinute  = 120  // requests of the tenant rate
	atOnce     = 3    // requests of the tenant narrow
)

// patience is the time that anything may take on a busy machine.
const patience = 3 * time.Minute

// models are those of the engines, one each. Only the tenant narrow asks slim, and only victims ask
// spare, whose answers may be cut.
var models = []string{"small", "large", "slim", "spare"}

// site is the programs of a part of the test, and what is known of them.
type site struct {
	t         *testing.T
	dir, bin  string // bin has cgn-router, cgn-agent and cgn-ctl
	mode, on  string // of [ratelimit]
	wires     wires
	redis     redisServer
	etcd      *process.Process
	etcdAt    string
	peerAt    string     // of etcd, where nobody connects
	etcdMu    sync.Mutex // held while etcd restarts, and while keys are stored in it
	agent     *process.Process
	engines   []string // addresses
	fronts    []string // of the agent
	routers   [2]*router
	books     books
	gate      sync.RWMutex // counted requests hold it for reading
	admin     *http.Client // shows the certificate of the role ctl
	sighups   int
	stalls    stalls
	restarts  int // of etcd
	graveyard graveyard
}

// router is one of the two routers.
type router struct {
	name      string // a or b
	at, admin string
	config    string // file
	log       string // access log
	process   *process.Process
}

// startSite starts all programs, and ends them with the test.
func startSite(t *testing.T, mode, on string) *site {
	s := &site{t: t, dir: t.TempDir(), bin: os.Getenv("TRUST"), mode: mode, on: on}
	s.books.site = s
	s.wires.make(s)
	s.etcdAt, s.peerAt = freeport.Address(t), freeport.Address(t)
	if err := s.startEtcd(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.etcd.Stop() })
	s.redis.start(s)
	for _, m := range models {
		at := freeport.Address(t)
		s.engines = append(s.engines, at)
		s.fronts = append(s.fronts, freeport.Address(t))
		p := s.run("engine-"+m, "cgn-ctl", "sim", "--listen", at, "--model", m, "--id", m, "--decode-step", "4ms",
			"--prefill-rate", "1e6")
		s.healthy(p, at, "/health")
	}
	s.startAgent()
	s.admin = &http.Client{Timeout: patience, Transport: &http.Transport{
		TLSClientConfig: s.wires.outside("ctl"), DisableKeepAlives: true}}
	for i, name := range []string{"a", "b"} {
		s.routers[i] = &router{name: name, at: freeport.Address(t), admin: freeport.Address(t),
			config: filepath.Join(s.dir, name+".toml"), log: filepath.Join(s.dir, name+".access")}
	}
	s.put(s.keysFile(), `{"keys":[]}`)
	for i, r := range s.routers {
		s.put(r.config, s.routerConfig(i, 0))
		r.process = s.run("router-"+r.name, "cgn-router", "--config", r.config)
	}
	for _, r := range s.routers {
		s.eventually(r.name+" is ready", patience, func() bool {
			resp, err := s.admin.Get("https://" + r.admin + "/readyz")
			if err != nil {
				return false
			}
			resp.Body.Close()
			return resp.StatusCode == 200
		})
	}
	return s
}

func (s *site) keysFile() string { return filepath.Join(s.dir, "keys.json") }

// run starts a program of s.bin, and ends it with the test.
func (s *site) run(name, program string, args ...string) *process.Process {
	s.t.Helper()
	p, err := process.Start(s.dir, name, append([]string{filepath.Join(s.bin, program)}, args...), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(p.Stop)
	return p
}

func (s *site) healthy(p *process.Process, at, path string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.WaitHealthy(ctx, at, path); err != nil {
		s.t.Fatal(err)
	}
}

// startEtcd starts etcd on the data that it has.
func (s *site) startEtcd() error {
	f := s.wires.files("etcd")
	peer := "http://" + s.peerAt
	p, err := process.Start(s.dir, "etcd", []string{os.Getenv("TRUST_ETCD"), "--name", "one", "--data-dir",
		filepath.Join(s.dir, "etcd.data"), "--listen-client-urls", "https://" + s.etcdAt, "--advertise-client-urls",
		"https://" + s.etcdAt, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster",
		"one=" + peer, "--cert-file", f.Cert, "--key-file", f.Key, "--trusted-ca-file", f.CA, "--client-cert-auth",
		"--unsafe-no-fsync", "--log-level", "error"}, nil)
	if err != nil {
		return err
	}
	s.etcd = p
	s.eventually("etcd answers", patience, func() bool {
		_, err := s.ctl("key", append([]string{"list"}, s.etcdFlags()...)...)
		return err == nil
	})
	return nil
}

// restartEtcd kills etcd and starts it again.
func (s *site) restartEtcd() {
	s.etcdMu.Lock()
	defer s.etcdMu.Unlock()
	_ = syscall.Kill(s.etcd.PID(), syscall.SIGKILL)
	s.etcd.Stop()
	time.Sleep(time.Second)
	if err := s.startEtcd(); err != nil {
		s.books.broken("etcd does not start: %v", err)
	}
	s.restarts++
}

func (s *site) etcdFlags() []string {
	f := s.wires.files("ctl")
	return []string{"--etcd", "https://" + s.etcdAt, "--etcd-ca", f.CA, "--etcd-cert", f.Cert, "--etcd-key", f.Key}
}

// ctl runs a command of cgn-ctl, and returns what it prints.
func (s *site) ctl(command string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(s.bin, "cgn-ctl"), append([]string{command}, args...)...)
	var complaint strings.Builder
	c.Stderr = &complaint
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("cgn-ctl %s %s: %w: %s", command, args[0], err, complaint.String())
	}
	return out, nil
}

func (s *site) startAgent() {
	f := s.wires.files("agent")
	var b strings.Builder
	fmt.Fprintf(&b, "[agent]\nnode_id = \"n\"\nadmin = %q\nstate_dir = %q\nheartbeat = \"1s\"\n", freeport.Address(s.t),
		filepath.Join(s.dir, "agent.state"))
	fmt.Fprintf(&b, "[etcd]\nendpoints = [\"https://%s\"]\nca = %q\ncert = %q\nkey = %q\n", s.etcdAt, f.CA, f.Cert, f.Key)
	fmt.Fprintf(&b, "[tls]\nca = %q\ncert = %q\nkey = %q\n", f.CA, f.Cert, f.Key)
	for i, m := range models {
		fmt.Fprintf(&b, "[[engine]]\nid = %q\nlisten = %q\nadvertise = \"https://%s\"\nurl = \"http://%s\"\n", m,
			s.fronts[i], s.fronts[i], s.engines[i])
	}
	s.put(filepath.Join(s.dir, "agent.toml"), b.String())
	s.agent = s.run("agent", "cgn-agent", "--config", filepath.Join(s.dir, "agent.toml"))
	for _, at := range s.fronts {
		s.healthy(s.agent, at, "")
	}
}

// routerConfig returns the configuration of a router. turn is in a limit that nobody needs, so that
// a reload has something to change.
func (s *site) routerConfig(i, turn int) string {
	r, f := s.routers[i], s.wires.files(s.routers[i].name)
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	pair := func() { p("cert = %q\nkey = %q", f.Cert, f.Key) }
	p("[router]\nlisten = %q\nadmin = %q\ndrain_delay = \"0s\"", r.at, r.admin)
	p("[takeover]\nsocket = \"off\"")
	p("[tls]\nclient_ca = %q\nclient_optional = true", f.CA)
	pair()
	p("[admin_tls]\nclient_ca = %q", f.CA)
	pair()
	p("[upstream_tls]\nca = %q", f.CA)
	pair()
	p("[limits]\nheader_timeout = \"2m\"\n[timeouts]\ndial = \"1m\"") // the machine may stand still
	p("[log]\naccess = %q\nlevel = \"info\"", r.log)
	if i == 0 {
		p("[auth]\nkeys_file = %q", s.keysFile())
		for j, m := range models {
			p("[[backend]]\nid = %q\nurl = \"https://%s\"\nca = %q\ncert = %q\ncert_key = %q", m, s.fronts[j], f.CA, f.Cert,
				f.Key)
		}
	} else {
		p("[auth]\nkeys_etcd = true")
		p("[etcd]\nendpoints = [\"https://%s\"]\nca = %q", s.etcdAt, f.CA)
		pair()
	}
	p("[[auth.certificate]]\nname = %q\ntenant = \"certs\"", clientName)
	p("[ratelimit]\nredis = [%q]\nmode = %q\non_failure = %q\ntimeout = %q\ntls = true\nca = %q", s.redis.at, s.mode,
		s.on, redisTimeout, f.CA)
	pair()
	const rich = "budget = 1000000000000\ntokens_per_minute = 1000000000"
	for _, tenant := range []string{"acme", "beta", "certs", "victims"} {
		p("[[limit]]\ntenant = %q\n%s\nrequests_per_minute = 10000000\nconcurrent = 10000", tenant, rich)
	}
	p("[[limit]]\ntenant = \"rate\"\n%s\nrequests_per_minute = %d", rich, perMinute)
	p("[[limit]]\ntenant = \"narrow\"\n%s\nconcurrent = %d", rich, atOnce)
	p("[[limit]]\ntenant = \"*\"\nbudget = %d", poorBudget)
	p("[[limit]]\nmodel = \"large\"\n%s", rich)
	p("[[limit]]\ntenant = \"nobody\"\nrequests_per_day = %d", 1000+turn)
	return b.String()
}

// reload has the routers read their configuration again, which has changed, or is no configuration.
func (s *site) reload(turn int) {
	for i, r := range s.routers {
		text := s.routerConfig(i, turn)
		if turn%3 == 2 {
			text = text[:len(text)/2] + "\n[[limit"
		}
		s.put(r.config, text)
		_ = syscall.Kill(r.process.PID(), syscall.SIGHUP)
		s.sighups++
	}
}

// put gives a file another content, in one step.
func (s *site) put(name, text string) {
	err := os.WriteFile(name+".new", []byte(text), 0o600)
	if err == nil {
		err = os.Rename(name+".new", name)
	}
	if err != nil {
		s.books.broken("%v", err)
	}
}

// metric returns the sum of a metric's series at a router that have all labels. ok is false if the
// router does not tell.
func (s *site) metric(r *router, name string, labels ...string) (sum float64, ok bool) {
	resp, err := s.admin.Get("https://" + r.admin + "/metrics")
	if err != nil {
		return 0, false
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
next:
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, name+" ") && !strings.HasPrefix(line, name+"{") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(line, l) {
				continue next
			}
		}
		v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return 0, false
		}
		sum += v
	}
	return sum, resp.StatusCode == 200 && lines.Err() == nil
}

// both returns the sum of a metric of both routers.
func (s *site) both(name string, labels ...string) (sum float64) {
	for _, r := range s.routers {
		s.eventually("router "+r.name+" tells "+name, patience, func() bool {
			v, ok := s.metric(r, name, labels...)
			if ok {
				sum += v
			}
			return ok
		})
	}
	return sum
}

// engineStats are what an engine counts.
type engineStats struct {
	Running   int64 `json:"running"` // as long as there are tokens to come
	Prompt    int64 `json:"prompt_tokens"`
	Generated int64 `json:"generated_tokens"`
}

func (s *site) stats(i int) (of engineStats) {
	s.t.Helper()
	resp, err := http.Get("http://" + s.engines[i] + "/sim/stats")
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	page, _ := io.ReadAll(resp.Body)
	if err := json.Unmarshal(page, &of); err != nil {
		s.t.Fatal(err)
	}
	return of
}

// eventually waits until ok, and returns for how long.
func (s *site) eventually(what string, most time.Duration, ok func() bool) time.Duration {
	s.t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > most {
			s.books.broken("not within %v: %s", most, what)
			return time.Since(began)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(began)
}

// outside is the TLS of a client that follows the files of a program.
func (w *wires) outside(program string) *tls.Config {
	id, err := pki.Load(w.files(program))
	if err != nil {
		w.s.t.Fatal(err)
	}
	return id.Outside("127.0.0.1")
}
