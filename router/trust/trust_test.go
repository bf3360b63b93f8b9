package trust

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestSteers(t *testing.T) {
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 4711} }
	shown := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
	verified := &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}
	for _, c := range []struct {
		what string
		peer net.Addr
		conn *tls.ConnectionState
		want bool
	}{
		{"loopback", tcp("127.0.0.1"), nil, true},
		{"another address of loopback", tcp("127.9.9.9"), nil, true},
		{"IPv6 loopback", tcp("::1"), nil, true},
		{"loopback in IPv6", tcp("::ffff:127.0.0.1"), nil, true},
		{"a Unix socket", &net.UnixAddr{Net: "unix"}, nil, true},
		{"another host", tcp("10.0.0.1"), nil, false},
		{"another host with TLS alone", tcp("10.0.0.1"), &tls.ConnectionState{}, false},
		{"another host with a certificate that nobody verified", tcp("10.0.0.1"), shown, false},
		{"another host with a verified certificate", tcp("10.0.0.1"), verified, true},
		{"an unknown peer", nil, nil, false},
		{"an unspecified address", tcp("0.0.0.0"), nil, false},
	} {
		if Steers(c.peer, c.conn) != c.want {
			t.Errorf("%s: %v", c.what, !c.want)
		}
	}
	if e := Denied("x-cgn-node"); e.Status != 403 || e.Param != "x-cgn-node" {
		t.Errorf("%+v", e)
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
