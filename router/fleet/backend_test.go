package fleet

import (
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/cluster"
)

func write(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestParseBackend(t *testing.T) {
	got, err := ParseBackend("https://a:8000,id=n1,model=org/m,role=decode,max_concurrent=8,api_key_file=/k,ca=/ca.pem," +
		"label=gpu=h100,label=fast,expert=0-127,expert=code,max_batched_tokens=8192,data_parallel_size=4,connector=mooncake,bootstrap=:9000")
	want := Backend{URL: "https://a:8000", ID: "n1", Model: "org/m", Role: "decode", MaxConcurrent: 8, APIKeyFile: "/k",
		CA: "/ca.pem", Labels: []string{"gpu=h100", "fast"}, Experts: cluster.Experts{"0-127", "code"},
		MaxBatchedTokens: 8192, DataParallel: 4, Connector: "mooncake", Bootstrap: ":9000"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v %v", got, err)
	}
	for _, good := range []string{"http://127.0.0.1:8001", "unix:///run/e.sock", "http+unix:///run/e.sock",
		"http://[::1]:1/base"} {
		if _, err := ParseBackend(good); err != nil {
			t.Error(err)
		}
	}
}

func TestBadBackendsSayWhatToDo(t *testing.T) {
	for flag, says := range map[string]string{
		"127.0.0.1:8001":                                    "http://host:port",
		"":                                                  "http://host:port",
		"http://a:8000/v1":                                  "give the server's root",
		"http://a,idd=x":                                    "option idd is not known; there are id=",
		"http://a,id":                                       "write id=VALUE",
		"http://a:1,http://b:1":                             "this is more than one URL; give each engine a --backend",
		"a:1,b:1":                                           "more than one URL",
		"http://a:1,id=x,http://b:1":                        "more than one URL",
		"http://a:1, http://b?x=1":                          "more than one URL",
		"http://a:1 http://b:1":                             "more than one URL",
		"http://a:1;http://b:1":                             "more than one URL",
		"http://a,id=":                                      "write id=VALUE",
		"http://a,id=x,id=y":                                "given twice",
		"http://a,id=a/b":                                   "letters, digits",
		"http://a,role=boss":                                "prefill, decode, both",
		"http://a,max_concurrent=many":                      "whole number",
		"http://a,max_concurrent=-1":                        "whole number",
		"http://a,ca=/x":                                    "https",
		"http://a,api_key=sk-1":                             "api_key_file=",
		"http://a,label=a b":                                "option label: \"a b\" holds a space",
		"http://a,label=x,label=x":                          "option label: \"x\" is given twice",
		"http://a,max_batched_tokens=x":                     "max_batched_tokens=x: want a whole number",
		"http://a,max_batched_tokens=-1":                    "option max_batched_tokens: -1 is not in 0..",
		"http://a,data_parallel_size=x":                     "data_parallel_size=x: want a whole number",
		"http://a,data_parallel_size=65":                    "option data_parallel_size: 65 is not in 0..64",
		"http://a,data_parallel_size=-1":                    "option data_parallel_size: -1 is not in 0..64",
		"http://a,labels=x":                                 "write label= once for each label",
		"http://a,experts=x":                                "write expert= once for each expert",
		"http://a,expert=9-0":                               "option expert: \"9-0\" is no number",
		"http://a,connector=rdma":                           "option connector: \"rdma\" is no connector; possible: nixl, mooncake, kvcached, sglang",
		"http://a,bootstrap=8998":                           "option bootstrap: bootstrap \"8998\" is not host:port, such as 10.0.0.7:7072, nor :port",
		"http://a,bootstrap=:x":                             "\"x\" is not a port",
		"http://a,bootstrap=b:8998":                         "give :port, which is on each engine's host",
		"unix:///a,connector=mooncake":                      "the url is a socket",
		"unix:///a,bootstrap=:8998":                         "the url is a socket",
		"http://127.0.0.1:1,connector=nixl,bootstrap=:8998": "nixl has no bootstrap server",
		"http://a/v1/chat/completions":                      "give the server's root",
		"http://a/v1/models":                                "give the server's root",
	} {
		if _, err := ParseBackend(flag); err == nil || !strings.Contains(err.Error(), says) ||
			strings.Contains(err.Error(), "sk-1") {
			t.Errorf("%q: %v, want one about %q", flag, err, says)
		}
	}
	if err := CheckBackends([]Backend{{URL: "http://a:1"}, {URL: "http://a:1"}}); err == nil ||
		!strings.Contains(err.Error(), `"http://a:1" is given twice; leave one out`) {
		t.Errorf("duplicate: %v", err)
	}
	if err := CheckBackends([]Backend{{URL: "http://a:1"}, {URL: "http://a:1/b"}}); err == nil ||
		!strings.Contains(err.Error(), `are both node "a:1"; give one of them another id=`) {
		t.Errorf("one id: %v", err)
	}
	for _, spelling := range []string{"kv-events", "kv_events"} {
		if b, err := ParseBackend("http://127.0.0.1:1," + spelling + "=tcp://127.0.0.1:2"); err != nil ||
			b.KVEvents == "" {
			t.Errorf("%s: %+v, %v", spelling, b, err)
		}
	}
	if err := (Backend{URL: "http://a:1,http://b:1"}).Check(); err == nil || !strings.Contains(err.Error(),
		"more than one URL") {
		t.Errorf("a table with two URLs: %v", err)
	}
}

func TestEndpoints(t *testing.T) {
	key := write(t, "key", "sk-test\n")
	b := Backend{URL: "https://engine:8443/x", APIKeyFile: key}
	at := func(b Backend, resolved ...netip.Addr) []endpoint {
		t.Helper()
		all, err := prepare([]Backend{b})
		if err != nil {
			t.Fatal(err)
		}
		return all[0].endpoints(resolved)
	}
	got := at(b, netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"))
	if len(got) != 2 {
		t.Fatal(got)
	}
	e := got[1]
	if e.id != "engine:8443@10.0.0.2" || e.target.Addr != "10.0.0.2:8443" || e.target.Host != "engine:8443" ||
		e.target.TLS.ServerName != "engine" || e.target.Authorization != "Bearer sk-test" || e.target.BasePath != "/x" {
		t.Fatalf("%+v", e)
	}
	if got[0].identity == e.identity {
		t.Fatal("two addresses, one identity")
	}
	for _, u := range []string{"http://127.0.0.1:1", "http://localhost:1", "unix:///x"} {
		if one := at(Backend{URL: u}); len(one) != 1 {
			t.Errorf("%s: %v", u, one)
		}
	}
	if one := at(Backend{URL: "http://127.0.0.1:8001"}); one[0].id != "127.0.0.1:8001" {
		t.Errorf("default id %q", one[0].id)
	}
}

func TestSecretsStayOutOfErrors(t *testing.T) {
	key := write(t, "key", "sk two words")
	_, err := New(Options{Backends: []Backend{{URL: "http://127.0.0.1:1", APIKeyFile: key}}})
	if err == nil || !strings.Contains(err.Error(), "api_key_file") || strings.Contains(err.Error(), "two words") {
		t.Fatalf("%v", err)
	}
	_, err = New(Options{Backends: []Backend{{URL: "https://127.0.0.1:1", CA: key}}})
	if err == nil || !strings.Contains(err.Error(), "option ca: ") ||
		strings.Contains(err.Error(), "two words") {
		t.Fatalf("%v", err)
	}
}

func FuzzParseBackend(f *testing.F) {
	f.Add("http://a:8000,id=x,model=m")
	f.Add("unix:///x,role=both")
	f.Fuzz(func(t *testing.T, flag string) {
		b, err := ParseBackend(flag)
		if err == nil && b.Check() != nil {
			t.Fatalf("%q parses and does not check", flag)
		}
	})
}
