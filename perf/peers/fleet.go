package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/cognitora/dataplane/perf/process"
)

// Engines are the settings of the workers.
type Engines struct {
	// Workers is the number of workers.
	Workers int
	// BlockTokens is the number of tokens in a KV block, Blocks the number of a worker's blocks.
	BlockTokens, Blocks int
	// Speedup divides the times that a worker simulates. Below 1 a worker is slower.
	Speedup float64
}

// Fleet is a set of running workers.
type Fleet struct {
	// Addrs are the workers' OpenAI endpoints, host:port each. Native workers have none.
	Addrs []string
	// Events and Replays are the addresses of the workers' KV events, if they have some.
	Events, Replays []string
	// Store is the folder through which Dynamo's programs find each other.
	Store string
	// Requests returns how many requests each worker has got.
	Requests func(ctx context.Context) ([]float64, error)
	// Stop ends the workers.
	Stop func()
}

// mocker starts workers of dynamo.mocker.
type mocker struct {
	Engines
	python string // of the environment in which Dynamo is installed
	model  string // folder of the model
	dir    string // gets a folder for each worker

	mu        sync.Mutex
	processes []*process.Process
}

// environment is for Dynamo's programs. store is the folder through which they find each other.
func environment(store string) []string {
	return []string{"DYN_FILE_KV=" + store, "DYN_REQUEST_PLANE=tcp", "DYN_LOG=error", "DYN_DISABLE_USAGE_STATS=1",
		"DYN_TOKENIZER_CACHE_EXTEND=1", "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1", "PYTHONUNBUFFERED=1"}
}

// frontend is the command of Dynamo's frontend.
func frontend(python, mode, port string) []string {
	return []string{python, "-m", "dynamo.frontend", "--discovery-backend", "file", "--router-mode", mode,
		"--http-host", "127.0.0.1", "--http-port", port, "--tokenizer", "fastokens"}
}

// worker is the command of one worker.
func (m *mocker) worker(more ...string) []string {
	return append([]string{m.python, "-m", "dynamo.mocker", "--model-path", m.model, "--model-name", modelName,
		"--discovery-backend", "file", "--num-workers", "1", "--block-size", strconv.Itoa(m.BlockTokens),
		"--num-gpu-blocks-override", strconv.Itoa(m.Blocks),
		"--speedup-ratio", strconv.FormatFloat(m.Speedup, 'g', -1, 64)}, more...)
}

// startTimeout is the time limit of a fleet's start.
const startTimeout = 2 * time.Minute

// start starts fresh workers. A native worker is found in Fleet.Store by a frontend that the
// caller starts. Every other worker has a plain frontend of its own, and publishes KV events.
func (m *mocker) start(ctx context.Context, native bool) (f *Fleet, err error) {
	const perWorker = 4
	ports, err := freePorts(perWorker * m.Workers)
	if err != nil {
		return nil, err
	}
	f = &Fleet{Store: filepath.Join(m.dir, "store"), Stop: m.stop}
	defer func() {
		if err != nil {
			m.stop()
		}
	}()
	var counters []string
	for i := range m.Workers {
		at := ports[perWorker*i : perWorker*(i+1)]
		counters = append(counters, "127.0.0.1:"+at[0])
		system := []string{"DYN_SYSTEM_HOST=127.0.0.1", "DYN_SYSTEM_PORT=" + at[0]}
		if native {
			err = m.run(fmt.Sprint("worker-", i), m.worker(), append(environment(f.Store), system...))
		} else {
			f.Addrs = append(f.Addrs, "127.0.0.1:"+at[1])
			f.Events = append(f.Events, "tcp://127.0.0.1:"+at[2])
			f.Replays = append(f.Replays, "tcp://127.0.0.1:"+at[3])
			err = m.runBehindFrontend(i, at, system)
		}
		if err != nil {
			return nil, err
		}
	}
	f.Requests = func(ctx context.Context) ([]float64, error) { return requestsOf(ctx, counters) }
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return f, m.await(ctx, f.Addrs, counters)
}

// runBehindFrontend starts worker i and its frontend, which find each other in a folder of their
// own.
func (m *mocker) runBehindFrontend(i int, ports, system []string) error {
	env := environment(filepath.Join(m.dir, fmt.Sprint("store-", i)))
	err := m.run(fmt.Sprint("worker-", i), m.worker("--zmq-kv-events-ports", ports[2], "--zmq-replay-ports", ports[3]),
		append(env, system...))
	if err != nil {
		return err
	}
	return m.run(fmt.Sprint("frontend-", i), frontend(m.python, "round-robin", ports[1]), env)
}

func (m *mocker) run(name string, argv, env []string) error {
	p, err := process.Start(m.dir, name, argv, env)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.processes = append(m.processes, p)
	return nil
}

// await waits until all workers answer: at their endpoints, or, if they have none, at those of
// their counters.
func (m *mocker) await(ctx context.Context, endpoints, counters []string) error {
	for _, addr := range endpoints {
		if err := m.awaitOne(ctx, func() error { return askOnce(ctx, addr) }); err != nil {
			return err
		}
	}
	return m.awaitOne(ctx, func() error {
		_, err := requestsOf(ctx, counters)
		return err
	})
}

// awaitOne waits until try succeeds, ctx ends or a process ends.
func (m *mocker) awaitOne(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		for _, p := range m.processes {
			if _, gone := p.Usage(); gone != nil {
				return gone
			}
		}
		select {
		case <-ctx.Done():
			return m.processes[len(m.processes)-1].Explain(fmt.Errorf("the workers did not start: %w", err))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// stop ends all processes.
func (m *mocker) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all sync.WaitGroup
	for _, p := range m.processes {
		all.Go(p.Stop)
	}
	all.Wait()
	m.processes = nil
}

// askOnce sends one short request, so that a worker's first use is not in the figures.
func askOnce(ctx context.Context, addr string) error {
	b := newBody(1)
	b.open("user")
	b.words(1, 0, 0)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/chat/completions",
		bytes.NewReader(b.close(1)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	return fetch(req, io.Discard)
}

// once makes requests over connections of their own.
var once = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// fetch copies an answer's body, and returns an error unless its status is 200.
func fetch(req *http.Request, to io.Writer) error {
	resp, err := once.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		page, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return fmt.Errorf("%s: status %d: %s", req.URL, resp.StatusCode, bytes.TrimSpace(page))
	}
	_, err = io.Copy(to, resp.Body)
	return err
}

// requestsOf reads the number of requests from the metrics of each worker.
func requestsOf(ctx context.Context, addrs []string) (counts []float64, err error) {
	for _, addr := range addrs {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
		if err != nil {
			return nil, err
		}
		var page bytes.Buffer
		if err := fetch(req, &page); err != nil {
			return nil, err
		}
		n, err := generated(&page)
		if err != nil {
			return nil, err
		}
		counts = append(counts, n)
	}
	return counts, nil
}

// freePorts returns ports that are free now, below those that the kernel gives to outgoing
// connections.
func freePorts(n int) (ports []string, err error) {
	const first, last, tries = 20000, 32000, 2000
	for range tries {
		port := strconv.Itoa(first + rand.IntN(last-first))
		ln, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			continue
		}
		defer ln.Close() // held until all ports are found, so that no port is found twice
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, errors.New("not enough free ports between 20000 and 32000")
}

// prepare makes an empty folder for one run.
func prepare(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.MkdirAll(filepath.Join(dir, "store"), 0o755)
}

// generated returns the requests that a worker has got, from its metrics. A worker that has got
// none has no counter yet.
func generated(page io.Reader) (n float64, err error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(page)
	if err != nil {
		return 0, fmt.Errorf("a worker's metrics: %w", err)
	}
	family := families["dynamo_component_requests_total"]
	for _, m := range family.GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == "dynamo_endpoint" && label.GetValue() == "generate" {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n, nil
}
