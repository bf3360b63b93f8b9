package purge

import (
	"errors"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

const (
	model  = "meta-llama/Llama-3.1-8B"
	tokens = "kv1;meta-llama/Llama-3.1-8B;main;bf16;l;16;1.0;1.0;"
	resp   = "key1;resp.0;"
	s3     = "key1;s3.kv;acme"
)

// TestMatches checks which blocks a selector names, also by keys of LMCache and of object clients.
func TestMatches(t *testing.T) {
	if _, err := block.ParseNamespace(tokens); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		s         Selector
		namespace string
		key       string
		want      bool
	}{
		{Selector{Everything: true}, "no namespace", "", true},
		{Selector{Model: model}, tokens, "", true},
		{Selector{Model: "meta-llama/Llama-3.1"}, tokens, "", false},
		{Selector{Model: model, Tenant: "acme"}, tokens, "", false},
		{Selector{Tenant: "acme"}, s3, "k", true},
		{Selector{Namespaces: []string{"x", s3}}, s3, "k", true},
		{Selector{Namespaces: []string{s3}, Model: model}, s3, "k", false},
		{Selector{Model: model}, resp, "", false},
		{Selector{Tenant: "acme"}, s3, "", true},
		{Selector{Model: model}, resp, model + "@1@0@4e1195df020de59e@bfloat16kv_bytes", true},
		{Selector{Model: model}, resp, "vllm@" + model + "@1@0@4e11@bfloat16", true},
		{Selector{Model: model}, s3, "prefix/meta-llama--Llama-3.1-8B/4e11", true},
		{Selector{Model: model}, s3, "4e11_meta-llama-Llama-3.1-8B_0", true},
		{Selector{Model: model}, s3, "meta-llama%2FLlama-3.1-8B@1", true},
		{Selector{Model: model}, resp, model + "-Instruct@1@0@4e11", false},
		{Selector{Model: model}, resp, "other/" + model + ".1@1", false},
		{Selector{Model: "m"}, resp, "xm@1 m", true},
	} {
		if got := matchAny([]Purge{{Selector: c.s}})(c.namespace, []byte(c.key)); got != c.want {
			t.Errorf("%+v of %s, %q: %v", c.s, c.namespace, c.key, got)
		}
	}
	for namespace, want := range map[string]bool{resp: true, tokens: false, s3: true} {
		l, err := new(List).With(Selector{Model: "nosuch"})
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Bars(Stamp{}, namespace, nil); got != want {
			t.Errorf("a block of %s whose key is unknown: %v", namespace, got)
		}
	}
}

func TestCheck(t *testing.T) {
	for want, s := range map[string]Selector{
		"name a model":    {},
		"alone":           {Everything: true, Model: "m"},
		"1 to 64":         {Namespaces: make([]string, MaxNamespaces+1)},
		"a name has 1025": {Model: strings.Repeat("x", 1025)},
	} {
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), want) && len(s.Model) != 1025 {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestFailed(t *testing.T) {
	bad := errors.New("bad")
	if err := Failed([]Done{{Host: "a", Blocks: 3}, {Host: "b"}}); err != nil {
		t.Error(err)
	}
	if err := Failed([]Done{{Err: bad}}); err != bad {
		t.Error(err)
	}
	err := Failed([]Done{{Host: "a"}, {Host: "b", Err: bad}, {Host: "c", Err: bad}})
	if !errors.Is(err, bad) || !strings.Contains(err.Error(), "the caches on b, c have not confirmed") {
		t.Error(err)
	}
	err = Failed([]Done{{Host: "a"}, {Host: "b", Err: ErrNoAddress}, {Host: "c", Err: bad}})
	if text := err.(*HostsError).Public(); !strings.Contains(text, "; purge again") ||
		!strings.HasSuffix(text, ErrNoAddress.Error()) {
		t.Error(text)
	}
	err = Failed([]Done{{Host: "a"}, {Host: "b", Err: ErrNoAddress}})
	if !strings.Contains(err.(*HostsError).Public(), "the cache on b has not confirmed") ||
		!strings.HasSuffix(err.(*HostsError).Public(), "purged; "+ErrNoAddress.Error()) {
		t.Error(err)
	}
}
