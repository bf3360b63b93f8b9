package trust

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestScopes(t *testing.T) {
	s, err := ParseScopes([]string{"route.pin", "inference"})
	if err != nil || s != Inference|Pin || !s.Has(Pin) || s.Has(Pin|Models) {
		t.Errorf("%v, %v", s.Names(), err)
	}
	if all, err := ParseScopes(ScopeNames()); err != nil || len(all.Names()) != len(ScopeNames()) {
		t.Errorf("all scopes are %v, %v", all.Names(), err)
	}
	if _, err := ParseScopes([]string{"admin"}); err == nil {
		t.Error("admin is a scope")
	}
}

func TestUses(t *testing.T) {
	p := &Principal{Models: NewModelList([]string{"llama", "qwen-*"})}
	for name, want := range map[string]bool{
		"llama": true, "llama-3": false, "qwen-": true, "qwen-3": true, "qwen": false, "": false, "Llama": false,
	} {
		if p.Uses(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
	if all := (&Principal{Models: NewModelList(nil)}); !all.Uses("any") || !(*Principal)(nil).Uses("any") {
		t.Error("no list is not all models")
	}
}

func TestPeer(t *testing.T) {
	for at, ofHost := range map[string]bool{
		"127.0.0.1:5": true, "[::1]:5": true, "[::ffff:127.0.0.1]:5": true, "192.0.2.7:5": false,
		"[fe80::1%eth0]:5": false, "@": false, "": false,
	} {
		req := httptest.NewRequest(http.MethodGet, "/", nil)
		if req.RemoteAddr = at; OfHost(Peer(req)) != ofHost {
			t.Errorf("%q: %v", at, !ofHost)
		}
		socket := context.WithValue(t.Context(), http.LocalAddrContextKey, &net.UnixAddr{Net: "unix"})
		if !OfHost(Peer(req.WithContext(socket))) {
			t.Errorf("%q over a Unix socket is of another host", at)
		}
	}
}
