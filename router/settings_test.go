package router_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestClientsMustShowACertificate checks tls.client_ca: clients need a certificate of that CA.
func TestClientsMustShowACertificate(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, other} {
		if err := pki.Bootstrap(d, pki.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	log := filepath.Join(dir, "audit")
	own, roots := pki.FilesIn(dir, pki.Router), x509.NewCertPool()
	page, err := os.ReadFile(own.CA)
	if err != nil || !roots.AppendCertsFromPEM(page) {
		t.Fatal(err)
	}
	engines := simulate(t, 1)
	s := serve(t, engines, func(c *router.Config) {
		c.TLS = router.TLSConfig{Cert: own.Cert, Key: own.Key, ClientCA: own.CA}
		c.Audit.Log = log
	})
	s.url = "https" + strings.TrimPrefix(s.url, "http")
	with := func(files *pki.Files) *reply {
		c := &tls.Config{RootCAs: roots}
		if files != nil {
			pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
			if err != nil {
				t.Fatal(err)
			}
			c.Certificates = []tls.Certificate{pair}
		}
		plainly := s.client
		defer func() { s.client = plainly }()
		s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: c}, Timeout: soon}
		defer s.client.CloseIdleConnections()
		return s.chat(chatBody("hello", plain))
	}
	stranger, monitor := pki.FilesIn(other, pki.Agent), pki.FilesIn(dir, pki.Monitor)
	if r := with(nil); r.err == nil {
		t.Errorf("without a certificate: %v", r)
	}
	if r := with(&stranger); r.err == nil {
		t.Errorf("with one of another CA: %v", r)
	}
	if r := with(&monitor); r.err == nil {
		t.Errorf("with one for admin ports: %v", r)
	}
	eventually(t, "three lines in the audit log", func() bool {
		return strings.Count(string(file(t, dir, "audit")), `"reason":"client_certificate"`) == 3
	})
	friend := pki.FilesIn(dir, pki.Agent)
	mustAll(t, "with one of the CA", []*reply{with(&friend)})
}

// TestModeAndMaxQueue checks that the mode of the command line wins over the mode of any document
// of the fleet's policy. The document's max_queue wins over the configuration's.
func TestModeAndMaxQueue(t *testing.T) {
	t.Parallel()
	for given, want := range map[string][2]string{"": {"least_loaded", "random"},
		"round_robin": {"round_robin", "round_robin"}} {
		t.Run("mode="+given, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "policy.json")
			write := func(doc string) {
				t.Helper()
				if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(`{"mode":"least_loaded","max_queue":2}`)
			s := serve(t, simulate(t, 2), func(c *router.Config) {
				c.Router.PolicyFile, c.Router.Mode, c.Router.Admission.MaxQueue = file, given, 3
			})
			limit := func() float64 { return s.metrics().sum("cgn_router_model_max_queue", `model="sim"`) }
			full := func(n int, setting string) {
				t.Helper()
				var running []*http.Response
				for range n {
					running = append(running, s.begin("/v1/chat/completions", chatBody("hello", streaming),
						"x-sim-fault", "stall_after=1"))
				}
				if r := s.chat(chatBody("one more", plain)); r.status != 503 || r.code() != "queue_full" ||
					!strings.Contains(string(r.body), "; "+setting+" bounds them") {
					t.Errorf("above %d: %v", n, r)
				}
				for _, resp := range running {
					resp.Body.Close()
				}
				s.idle()
			}
			full(2, "max_queue of the policy")
			if got := s.explain(chatBody("hello", "")).Mode; got != want[0] || limit() != 2 {
				t.Errorf("at the start: %s, max_queue %v", got, limit())
			}
			write(`{"mode":"random"}`)
			eventually(t, "the new document is in force", func() bool { return limit() == 3 })
			full(3, "router.admission.max_queue")
			if got := s.explain(chatBody("hello", "")).Mode; got != want[1] {
				t.Errorf("after the change: %s", got)
			}
			in, _ := s.policyInForce()
			if note := in.Overridden(); in.Mode != want[1] || (given != "") !=
				(note == "router.mode overrides mode random of the document") || note != "" && s.log.count(note) != 1 {
				t.Errorf("in force: %s, %q", in.Mode, note)
			}
		})
	}
}

// TestLargeEngineBlocks checks that an engine with larger cache blocks than the router's causes no
// prediction error.
func TestLargeEngineBlocks(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1, func(c *engine.Config) { c.BlockTokens, c.CacheBlocks = 256, 512 }))
	seed := 0
	eventually(t, "the size of a block is known and taken into account", func() bool {
		seed++
		before, _ := s.errors()
		body := chatBody(document(seed, 2900), plain)
		mustAll(t, "twice", []*reply{s.chat(body)})
		s.idle()
		eventually(t, "judged", func() bool { n, _ := s.errors(); return n == before+1 })
		_, was := s.errors()
		r := s.chat(body)
		eventually(t, "judged", func() bool { n, _ := s.errors(); return n == before+2 })
		if prompt, held := cached(t, r); held == 0 || prompt-held < 32 {
			t.Fatalf("%v of %v tokens cached", held, prompt)
		}
		_, is := s.errors()
		return is == was
	})
}

// TestRequestIDs checks that the router uses the client's own id if it can stand in a log line.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	for id, taken := range map[string]bool{
		"mine": true, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false, "two words": false,
		"größe": false, "": false,
	} {
		r := s.chat(chatBody("hello", plain), "x-request-id", id)
		mustAll(t, id, []*reply{r})
		got := r.header.Get("x-request-id")
		if (got == id) != taken || len(got) == 0 || len(got) > 128 {
			t.Errorf("%q became %q", id, got)
		}
		if seen := lastTo(t, s.engines[0], "/v1/chat/completions").Header.Get("x-request-id"); seen != got {
			t.Errorf("the engine saw %q, the client %q", seen, got)
		}
	}
}

// TestEnginesAreNotChangedByClients checks that paths that change an engine are refused in every
// spelling.
func TestEnginesAreNotChangedByClients(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	for _, path := range []string{
		"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/load_lora_adapter/", "/v1//load_lora_adapter",
		"//v1/load_lora_adapter//",
		"/v1/load_lora_adapter%2F", "/v1%2Fload_lora_adapter", "/v1/%6coad_lora_adapter", "/v1/Load_Lora_Adapter",
		"/v1/x/../load_lora_adapter",
		"/v1/load_lora_adapter%252F", "/v1/load_lora_adapter?x=1", "/v1/audio/../unload_lora_adapter/",
	} {
		if r := s.post(path, `{"model":"sim","lora_name":"x","lora_path":"/x"}`); r.status != 404 ||
			r.code() != "unknown_path" {
			t.Errorf("%s: %v", path, r)
		}
	}
	for _, seen := range s.engines[0].Requests() {
		if strings.Contains(strings.ToLower(fmt.Sprint(seen.Path)), "lora") {
			t.Errorf("the engine was asked for %s", seen.Path)
		}
	}
}
