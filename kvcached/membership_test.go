package kvcached

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/etcdserver"
)

// TestReadyzTellsOfEtcd checks that a cache goes on serving without etcd. /readyz says when etcd is
// lost and when it is back.
func TestReadyzTellsOfEtcd(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	etcd, err := etcdserver.Start(dir, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if etcd != nil {
			etcd.Close()
		}
	}()
	at := etcd.Endpoint()
	daemon := func(id string, port string) *Daemon {
		c, log := settings(t, t.TempDir(), func(c *Config) {
			c.Daemon.CacheID, c.Daemon.Heartbeat, c.Etcd.Endpoints, c.QUIC.Listen = id,
				config.Duration(300*time.Millisecond), []string{at}, port
		})
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s: %s", id, log)
			}
		})
		d, _ := begin(t, c)
		return d
	}
	member, alone := daemon("member", "127.0.0.1:0"), daemon("alone", "")
	if member.view.Load() == nil || alone.view.Load() != nil {
		t.Fatal("who has a view of the fleet has changed")
	}
	meet(t, 1, member)
	awaitThat(t, "the purges are read", func() bool {
		code, _ := get(t, "http://"+member.AdminAddr().String()+"/readyz")
		return code == 200
	})
	say := func(link string) {
		for _, d := range []*Daemon{member, alone} {
			awaitThat(t, d.config.cacheID()+" says "+link, func() bool {
				code, body := get(t, "http://"+d.AdminAddr().String()+"/readyz")
				var s status
				if err := json.Unmarshal([]byte(body), &s); err != nil || code != 200 {
					t.Fatalf("%d %s: %v", code, body, err)
				}
				return s.Etcd == link
			})
		}
	}
	say("connected")
	etcd.Close()
	etcd = nil
	say("lost")
	if etcd, err = etcdserver.Start(dir, at); err != nil {
		t.Fatal(err)
	}
	say("connected")
}

// TestCertificatesOfItsOwnAreForOneHost checks that a cache with self-made certificates is
// announced if it is the only one. A second cache with self-made certificates does not start. The
// first cache leaves the fleet when a cache with certificates of the fleet comes.
func TestCertificatesOfItsOwnAreForOneHost(t *testing.T) {
	s := newSite(t)
	bare := func(c *Config) { c.TLS = TLSConfig{} }
	c, log := settings(t, t.TempDir(), s.join("a", bare))
	a, stopA := begin(t, c)
	meet(t, 1, a)
	awaitThat(t, "the first is announced", func() bool { return len(announced(t, s)) == 1 })
	refused, _ := settings(t, t.TempDir(), s.join("b", bare))
	second, err := New(refused)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context(), t.Context()); err == nil ||
		!strings.Contains(err.Error(), `another cache, "a"`) ||
		!strings.Contains(err.Error(), "cgn-ctl pki bootstrap") {
		t.Errorf("the second: %v", err)
	}
	_, stopC := s.host(t, "c", nil)
	awaitThat(t, "the first leaves", func() bool {
		names := announced(t, s)
		return len(names) == 1 && names[0] == "c" && a.member.state() == "left"
	})
	if !strings.Contains(log.String(), "the cache has left the fleet") {
		t.Errorf("log:\n%s", log)
	}
	if got := redis(t, a.At("resp"), "SET k v", "GET k"); got[1] != "v" {
		t.Errorf("it serves: %q", got)
	}
	if err := errors.Join(stopA(), stopC()); err != nil {
		t.Error(err)
	}
}

// announced returns the caches that etcd lists.
func announced(t *testing.T, s site) (names []string) {
	t.Helper()
	client, err := cluster.Dial(cluster.Config{Endpoints: []string{s.etcd}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	_ = client.Watch(ctx, cluster.CachesPrefix, cluster.Handler{
		List: func(l cluster.Listing) {
			for _, e := range l.Entries {
				names = append(names, strings.TrimPrefix(e.Key, cluster.CachesPrefix))
			}
			end()
		}, Put: func(cluster.Entry) {}, Delete: func(string) {},
	})
	return names
}
