package front

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
)

func TestOnlyRoutersGetIn(t *testing.T) {
	dir := t.TempDir()
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	o := testOptions(t)
	id, err := pki.Load(pki.FilesIn(dir, pki.Agent))
	if err != nil {
		t.Fatal(err)
	}
	o.TLS = id.Server(true, pki.Router, pki.Ctl)
	engineOf(t, &o, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	_, url, _ := serve(t, o)
	get := func(c *tls.Config) (string, error) {
		transport := &http.Transport{TLSClientConfig: c}
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport}).Get("https" + strings.TrimPrefix(url, "http") + "/v1/models")
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	for role, allowed := range map[pki.Role]bool{pki.Router: true, pki.Ctl: true, pki.Agent: false, pki.Etcd: false} {
		c, err := pki.ClientConfig(pki.FilesIn(dir, role), "127.0.0.1", pki.Agent)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := get(c); (err == nil && body == "hello") != allowed {
			t.Errorf("%s: %q, %v", role, body, err)
		}
	}
	if _, err := get(&tls.Config{InsecureSkipVerify: true}); err == nil {
		t.Error("a client without certificate was let in")
	}
}

// TestPlainHTTPIsToldSo: plain HTTP on the TLS port gets an answer that says so.
func TestPlainHTTPIsToldSo(t *testing.T) {
	dir := t.TempDir()
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	o := testOptions(t)
	id, err := pki.Load(pki.FilesIn(dir, pki.Agent))
	if err != nil {
		t.Fatal(err)
	}
	o.TLS = id.Server(true, pki.Router)
	engineOf(t, &o, func(http.ResponseWriter, *http.Request) { t.Error("it reached the engine") })
	_, url, client := serve(t, o)
	resp, body := post(t, client, url+"/v1/completions", "{}")
	if resp.StatusCode != 400 || !strings.Contains(body, `"https_required"`) ||
		!strings.Contains(body, `"type":"invalid_request_error"`) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	eventually(t, "it is counted", func() bool { return counted(o.Counters.Rejected) == 1 })
}

func TestStreamOverTLSIsCancelledByLeaving(t *testing.T) {
	dir := t.TempDir()
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	o := testOptions(t)
	id, err := pki.Load(pki.FilesIn(dir, pki.Agent))
	if err != nil {
		t.Fatal(err)
	}
	o.TLS = id.Server(true, pki.Router)
	arrived, canceled := make(chan struct{}), make(chan struct{})
	engineOf(t, &o, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(arrived)
		<-r.Context().Done()
		close(canceled)
	})
	_, url, _ := serve(t, o)
	config, err := pki.ClientConfig(pki.FilesIn(dir, pki.Router), "localhost")
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.Dial("tcp", strings.TrimPrefix(url, "http://"), config)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
	<-arrived
	_ = c.NetConn().Close()
	select {
	case <-canceled:
	case <-time.After(patience):
		t.Error("the engine was not told")
	}
}
