package realengine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestLlamaTenants(t *testing.T) {
	s := prepared(t, "llama")
	e := s.engine(t, "llama-tenants", llamaFlags(s.model)...)
	e.awaitReady(t)
	s.tenants(t, e, false)
}

func TestVLLMTenants(t *testing.T) {
	s := prepared(t, "vllm")
	e := s.engine(t, "vllm-tenants", vllmFlags(s.model, "--enable-prompt-tokens-details")...)
	e.awaitReady(t)
	s.tenants(t, e, true)
}

// tenants measures what a tenant learns from an engine of prompts that another one has asked, with
// and without isolation. salted says that the engine knows salts. One that does not reuses nothing.
func (s setup) tenants(t *testing.T, e *engine, salted bool) {
	for _, by := range []string{"none", "tenant"} {
		t.Run(by, func(t *testing.T) {
			w := s.locked(t, e, by)
			victim, spy := w.key(t, "acme"), w.key(t, "spies")
			w.startRouter(t)
			saw := map[string]*sight{"own": {}, "asked": {}, "fresh": {}}
			for i := range 12 {
				prompt := ledger(by, i)
				w.look(t, victim, prompt)
				saw["own"].add(w.look(t, victim, prompt))
				saw["asked"].add(w.look(t, spy, prompt))
				saw["fresh"].add(w.look(t, spy, ledger(by+" fresh", i)))
			}
			for what, one := range saw {
				t.Logf("isolation %s, %s: %d tokens cached, %v", by, what, one.cached, one.median())
			}
			if shown := saw["asked"].cached > saw["fresh"].cached; shown != (by == "none") {
				t.Errorf("the spy sees %d cached tokens of prompts that were asked", saw["asked"].cached)
			}
			if reused := saw["own"].cached > 0; reused != (by == "none" || salted) {
				t.Errorf("a tenant's own prompts have %d cached tokens", saw["own"].cached)
			}
		})
	}
}

// ledger returns a prompt that shares no block with those of other books and pages.
func ledger(book string, page int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Page %d of %s. ", page, book)
	for line := range 40 {
		fmt.Fprintf(&b, "Line %d: %d. ", line, (page+1)*(line+7)*7919%100003)
	}
	return b.String()
}

// sight is what a client sees of some prompts.
type sight struct {
	cached int
	took   []time.Duration
}

func (s *sight) add(cached int, took time.Duration) {
	s.cached += cached
	s.took = append(s.took, took)
}

func (s *sight) median() time.Duration {
	slices.Sort(s.took)
	return s.took[len(s.took)/2]
}

// locked is a site whose router asks for keys.
type locked struct {
	setup
	e              *engine
	by, keys, url  string
	isolationWords []string
}

func (s setup) locked(t *testing.T, e *engine, by string) *locked {
	w := &locked{setup: s, e: e, by: by, keys: filepath.Join(s.run, e.id+"-"+by+".json")}
	if by != "none" {
		secret := filepath.Join(s.run, e.id+".secret")
		if err := os.WriteFile(secret, bytes.Repeat([]byte("0123456789abcdef"), 2), 0o600); err != nil {
			t.Fatal(err)
		}
		w.isolationWords = []string{"--isolation", by, "--isolation-secret-file", secret}
	}
	return w
}

// key makes a key of a tenant.
func (w *locked) key(t *testing.T, tenant string) string {
	t.Helper()
	out, err := exec.Command(filepath.Join(w.bin, "cgn-ctl"), "key", "create", "--keys-file", w.keys,
		"--tenant", tenant, "-o", "json").Output()
	var doc struct{ Key string }
	if err == nil {
		err = json.Unmarshal(out, &doc)
	}
	if err != nil || doc.Key == "" {
		t.Fatalf("%v: %s", err, out)
	}
	return doc.Key
}

func (w *locked) startRouter(t *testing.T) {
	t.Helper()
	listen := free(t)
	w.url = "http://" + listen
	argv := append([]string{filepath.Join(w.bin, "cgn-router"), "--listen", listen, "--admin", free(t), "--drain-delay",
		"0s", "--keys-file", w.keys, "--backend", w.e.url() + ",id=" + w.e.id}, w.isolationWords...)
	w.launch(t, "router-"+w.e.id+"-"+w.by, nil, argv...)
	within(t, soon, "the router serves", func() bool { return healthy(w.url + "/health") })
}

// look asks a prompt with a key, and returns the cached tokens and the time of the first one.
func (w *locked) look(t *testing.T, key, prompt string) (cached int, took time.Duration) {
	t.Helper()
	page, _ := json.Marshal(object{"model": model, "prompt": prompt, "max_tokens": 1})
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, w.url+"/v1/completions",
		bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	began := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var doc struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d, %v", resp.StatusCode, err)
	}
	return doc.Usage.Details.Cached, time.Since(began)
}
