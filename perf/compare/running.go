package compare

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/perf/load"
	"github.com/cognitora/dataplane/perf/process"
)

// view is the data of templates.
type view struct {
	Engines                                 []string
	Engine, I                               string
	Dir, Bin, Cache, Etcd, PKI, Keys, Model string
	Cores, Clients, Connections             int
}

// Running is a running contestant.
type Running struct {
	*Contestant
	site      *Site
	ports     map[string]int
	spare     []int
	view      view
	processes []*process.Process
	secure    *tls.Config       // of clients; nil: plain TCP
	next      map[string]uint64 // number of the next request, by scenario
}

// Missing returns why a contestant cannot be started; "" if it can.
func (s *Site) Missing(c *Contestant) string {
	if c.Program == "" {
		return ""
	}
	path := strings.NewReplacer("{{.Bin}}", s.Bin, "{{.Cache}}", s.Cache).Replace(c.Program)
	if _, err := exec.LookPath(path); err != nil {
		return "not installed: " + c.Install
	}
	if _, err := s.Version(c); err != nil {
		return "does not run: " + c.Install
	}
	return ""
}

// maxPorts is the largest number of ports of one contestant.
const maxPorts = 16

// Start starts a contestant and waits until it answers a request.
func (s *Site) Start(ctx context.Context, c *Contestant) (r *Running, err error) {
	r = &Running{Contestant: c, site: s, ports: map[string]int{}, next: map[string]uint64{}}
	if err := s.needs(c); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	r.view = view{Engines: s.Engines(), Bin: s.Bin, Cache: s.Cache, PKI: s.pki, Keys: s.keys.File, Model: s.model,
		Cores: runtime.NumCPU(), Clients: s.room(false) + 50}
	r.view.Connections = 2 * r.view.Clients
	if s.etcd != nil {
		r.view.Etcd = s.etcd.Endpoint()
	}
	if r.spare, err = freePorts(maxPorts); err != nil {
		return nil, err
	}
	if r.view.Dir, err = os.MkdirTemp(s.Dir, "contestant-"); err != nil {
		return nil, err
	}
	if err := os.Chmod(r.view.Dir, 0o755); err != nil { // nginx's workers run as another user
		return nil, err
	}
	if c.TLS {
		roots, err := pki.Roots(filepath.Join(s.pki, "ca.crt"))
		if err != nil {
			return nil, err
		}
		r.secure = &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}
	}
	if err := r.start(ctx); err != nil {
		r.Stop()
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	return r, nil
}

const startTimeout = time.Minute

func (r *Running) start(ctx context.Context) error {
	for i := range r.Processes {
		row := &r.Processes[i]
		engines := []string{""}
		if row.ForEachEngine {
			engines = r.view.Engines
		}
		for n, engine := range engines {
			v := r.view
			v.Engine, v.I = engine, strconv.Itoa(n)
			if err := r.startProcess(fmt.Sprintf("%d-%d", i, n), row, v); err != nil {
				return err
			}
		}
	}
	if len(r.processes) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	last := r.processes[len(r.processes)-1]
	if err := last.WaitHealthy(ctx, r.Addr(), r.Health); err != nil {
		return err
	}
	return r.awaitAnswer(ctx, last)
}

func (r *Running) startProcess(name string, row *ProcessRow, v view) error {
	argv, err := r.renderAll(row.Command, v)
	for i, engine := range v.Engines {
		w := v
		w.Engine, w.I = engine, strconv.Itoa(i)
		more, bad := r.renderAll(row.Each, w)
		argv, err = append(argv, more...), errors.Join(err, bad)
	}
	for file, text := range row.Files {
		both, bad := r.renderAll([]string{file, text}, v)
		if bad == nil {
			bad = os.WriteFile(filepath.Join(v.Dir, both[0]), []byte(both[1]), 0o644)
		}
		err = errors.Join(err, bad)
	}
	env, bad := r.renderAll(slices.Concat(r.Env, row.Env), v)
	if err := errors.Join(err, bad); err != nil {
		return err
	}
	p, err := process.Start(v.Dir, name, argv, env)
	if err != nil {
		return err
	}
	r.processes = append(r.processes, p)
	return nil
}

func (r *Running) renderAll(texts []string, v view) ([]string, error) {
	var out []string
	for _, text := range texts {
		t, err := template.New("").Funcs(template.FuncMap{"port": r.port}).Parse(text)
		if err != nil {
			return nil, err
		}
		var b bytes.Buffer
		if err := t.Execute(&b, v); err != nil {
			return nil, err
		}
		out = append(out, b.String())
	}
	return out, nil
}

func (r *Running) port(name string) (int, error) {
	if p, ok := r.ports[name]; ok {
		return p, nil
	}
	if len(r.spare) == 0 {
		return 0, errors.New("too many port names")
	}
	r.ports[name] = r.spare[0]
	r.spare = r.spare[1:]
	return r.ports[name], nil
}

// Addr returns the host:port that gets the load: an engine's, if nothing was started.
func (r *Running) Addr() string {
	if len(r.processes) == 0 {
		return r.site.behind[0]
	}
	return r.at("front")
}

// Target returns where the load goes, and how, with a key if clients need one.
func (r *Running) Target() load.Target {
	t := load.Target{Address: r.Addr(), TLS: r.secure}
	if r.NeedsKeys {
		t.Key = r.site.keys.Good
	}
	return t
}

// AdminAddr returns the host:port with /metrics.
func (r *Running) AdminAddr() string { return r.at(r.Admin) }

// PID returns the id of the last process started, to which clients connect.
func (r *Running) PID() int { return r.processes[len(r.processes)-1].PID() }

func (r *Running) at(port string) string { return "127.0.0.1:" + strconv.Itoa(r.ports[port]) }

// awaitAnswer sends requests until one is answered, because some routers report that they are
// healthy before they know an engine.
func (r *Running) awaitAnswer(ctx context.Context, last *process.Process) error {
	bodies := load.NewChat(load.ChatConfig{Model: r.site.model, PromptBytes: 64, Tokens: 1})
	for {
		result, _ := load.Closed{Target: r.Target(), Bodies: bodies, Clients: 1, Requests: 1,
			Window: load.Window{Measure: 10 * time.Second}}.Run()
		if result.Requests == 1 {
			return nil
		}
		select {
		case <-ctx.Done():
			return last.Explain(fmt.Errorf("healthy, but its answers are %v", result.Failures))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Usage returns the usage of all processes of the contestant; 0 for direct.
func (r *Running) Usage() (process.Usage, error) {
	var sum process.Usage
	for _, p := range r.processes {
		u, err := p.Usage()
		if err != nil {
			return sum, err
		}
		sum = sum.Add(u)
	}
	return sum, nil
}

// Stop ends the contestant's processes in reverse order of their start.
func (r *Running) Stop() {
	for i := len(r.processes) - 1; i >= 0; i-- {
		r.processes[i].Stop()
	}
	r.processes = nil
}

// Version returns the first line of a contestant's version command.
func (s *Site) Version(c *Contestant) (string, error) {
	if len(c.Version) == 0 {
		return "", nil
	}
	replace := strings.NewReplacer("{{.Bin}}", s.Bin, "{{.Cache}}", s.Cache)
	var argv []string
	for _, a := range c.Version {
		argv = append(argv, replace.Replace(a))
	}
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(line), err
}
