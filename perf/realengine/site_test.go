package realengine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// site is a router with engines, and a client of it.
type site struct {
	*program
	owner      *testing.T // the processes end with this test
	setup      setup
	engines    []*engine
	url, admin string
	client     *http.Client
}

const model = "tiny" // the name that every engine serves

// site starts the router for engines that are ready, and waits until it would use each of them.
func (s setup) site(t *testing.T, engines ...*engine) *site {
	t.Helper()
	w := &site{
		owner: t, setup: s, engines: engines,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}, Timeout: 2 * time.Minute},
	}
	t.Cleanup(w.client.CloseIdleConnections)
	w.startRouter(t)
	return w
}

func (w *site) startRouter(t *testing.T) {
	t.Helper()
	listen, admin := free(t), free(t)
	w.url, w.admin = "http://"+listen, "http://"+admin
	argv := []string{filepath.Join(w.setup.bin, "cgn-router"), "--listen", listen, "--admin", admin, "--drain-delay",
		"0s"}
	for _, e := range w.engines {
		argv = append(argv, "--backend", e.url()+",id="+e.id+e.options)
	}
	for _, e := range w.engines {
		if e.tokenizer == "" && !strings.Contains(e.options, "kv-events=") {
			continue
		}
		tokenizer := cmp.Or(e.tokenizer, "none")
		file := filepath.Join(w.setup.run, e.id+".toml")
		page := fmt.Sprintf("[[model]]\nname = %q\ntokenizer = %q\nchat_template = %q\n%s\n", model, tokenizer, e.template,
			e.settings)
		if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
			t.Fatal(err)
		}
		argv = append(argv, "--config", file)
	}
	w.program = w.setup.launch(w.owner, "router-"+strings.ReplaceAll(w.owner.Name(), "/", "-"), nil, argv...)
	within(t, soon, "the router uses every engine", func() bool { return w.eligible() == len(w.engines) })
	if !healthy(w.admin + "/readyz") {
		t.Error("/readyz is not 200")
	}
}

// engine returns the engine with this id.
func (w *site) engine(t *testing.T, id string) *engine {
	t.Helper()
	for _, e := range w.engines {
		if e.id == id {
			return e
		}
	}
	t.Fatalf("no engine %q", id)
	return nil
}

// object is a JSON object.
type object map[string]any

// open sends a request and does not wait for the body of the answer.
func (w *site) open(ctx context.Context, method, path string, body object) (*http.Response, error) {
	var page []byte
	if body != nil {
		page, _ = json.Marshal(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, w.url+path, bytes.NewReader(page))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return w.client.Do(req)
}

// ask sends a request and reads its answer to the end. Any goroutine may call ask.
func (w *site) ask(method, path string, body object) *answer {
	began := time.Now()
	resp, err := w.open(w.owner.Context(), method, path, body)
	if err != nil {
		return &answer{err: err, header: http.Header{}, took: time.Since(began)}
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	return &answer{resp.StatusCode, resp.Header, page, err, time.Since(began)}
}

func (w *site) get(path string) *answer               { return w.ask(http.MethodGet, path, nil) }
func (w *site) post(path string, body object) *answer { return w.ask(http.MethodPost, path, body) }
func (w *site) chat(messages []object, more object) *answer {
	return w.post("/v1/chat/completions", chatBody(messages, more))
}

// must sends a request whose answer must be good.
func (w *site) must(t *testing.T, path string, body object) *answer {
	t.Helper()
	a := w.post(path, body)
	if !a.good() {
		t.Fatalf("%s: %v", path, a)
	}
	return a
}

func chatBody(messages []object, more object) object {
	body := object{"model": model, "messages": messages, "max_tokens": 4, "temperature": 0}
	for k, v := range more {
		body[k] = v
	}
	return body
}

func user(text string) []object { return []object{{"role": "user", "content": text}} }

// together sends n requests concurrently and returns the answers in order.
func together(n int, send func(i int) *answer) []*answer {
	all := make([]*answer, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { all[i] = send(i) })
	}
	wg.Wait()
	return all
}

// node is a node in /debug/fleet.
type node struct {
	ID       string  `json:"id"`
	State    string  `json:"state"`
	Eligible bool    `json:"eligible"`
	InFlight int     `json:"in_flight"`
	Lifetime float64 `json:"learned_lifetime_s"`
}

func (w *site) nodes() map[string]node {
	var view struct {
		Nodes []node `json:"nodes"`
	}
	all := map[string]node{}
	if json.Unmarshal(w.read("/debug/fleet"), &view) == nil {
		for _, n := range view.Nodes {
			all[n.ID] = n
		}
	}
	return all
}

func (w *site) eligible() (count int) {
	for _, n := range w.nodes() {
		if n.Eligible {
			count++
		}
	}
	return count
}

// read returns a page of the admin port; nil if there is none.
func (w *site) read(path string) []byte {
	resp, err := w.client.Get(w.admin + path)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	page, _ := io.ReadAll(resp.Body)
	return page
}

var sample = regexp.MustCompile(`(?m)^([a-z_:]+)(\{[^}]*\})? (\S+)$`)

// metric returns the sum of the router's samples of this name over all nodes and models.
func (w *site) metric(t *testing.T, name string) (total float64) {
	return sum(t, w.read("/metrics"), name)
}

func sum(t *testing.T, page []byte, name string) (total float64) {
	for _, m := range sample.FindAllStringSubmatch(string(page), -1) {
		if m[1] != name {
			continue
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			t.Errorf("/metrics: %s", m[0])
		}
		total += v
	}
	return total
}

// spread returns the number of answers by node.
func spread(all []*answer) map[string]int {
	count := map[string]int{}
	for _, a := range all {
		count[a.node()]++
	}
	return count
}

// prose returns a text of about n bytes that differs for every name. The text's words come from the
// training text of the tiny models' vocabularies.
func prose(name string, n int) string {
	const syllables = "cacheroutermodeltokenprefixtheanisingstonrelius"
	h := uint64(14695981039346656037)
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		for _, c := range name + strconv.Itoa(i) {
			h = (h ^ uint64(c)) * 1099511628211
		}
		at, length := h>>33%uint64(len(syllables)-6), 3+h>>29%4
		b.WriteString(syllables[at:at+length] + " ")
	}
	return b.String()
}
