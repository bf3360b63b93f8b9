package kvcached

import (
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/internal/freeport"
	"github.com/cognitora/dataplane/kv/block"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// TestEtcdIsAwayAtTheStart starts a daemon without etcd. The daemon stores keys and blocks at once.
// The daemon is not ready before it has read the fleet's purges: reads are misses, and a purge is
// an error. The daemon goes on serving when etcd ends later.
func TestEtcdIsAwayAtTheStart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dir := t.TempDir()
	etcd, err := etcdserver.Start(dir, freeport.Address(t))
	if err != nil {
		t.Fatal(err)
	}
	s.etcd = etcd.Endpoint()
	etcd.Close()
	c, _ := settings(t, t.TempDir(), s.join("a", nil))
	a, _ := begin(t, c)
	admin := "http://" + a.AdminAddr().String()
	const unnamed = "has not named the caches of the fleet yet"
	if code, body := get(t, admin+"/readyz"); code != 503 || !strings.Contains(body, unnamed) {
		t.Error(code, body)
	}
	if r, err := kv(t, a).Peers(t.Context(), &pb.PeersRequest{}); err != nil || !strings.Contains(r.Unknown, unnamed) {
		t.Error(r, err)
	}
	if _, body := get(t, admin+"/metrics"); !strings.Contains(body, "cgn_kvcached_fleet_named 0\n") {
		t.Error("no cgn_kvcached_fleet_named 0")
	}
	address := block.Text(testSpace.String(), testAddr(1))
	got := redis(t, a.At("resp"), "SET k 1", "GET k", "SET k 2 NX", "EXPIRE k 9", "DEL k", "SET "+address+" block",
		"GET "+address, "DEL "+address)
	if strings.Join(got, " ") != "+OK $-1 $-1 :0 :1 +OK $-1 :1" {
		t.Errorf("%q", got)
	}
	const down = "etcd does not answer, so no host has confirmed the purge"
	if got := once(t, a, "FLUSHDB"); !strings.HasPrefix(got, "-ERR "+down) {
		t.Error(got)
	}
	if _, err := kv(t, a).Purge(t.Context(), &pb.PurgeRequest{Everything: true}); err == nil ||
		!strings.Contains(err.Error(), down) {
		t.Error(err)
	}
	if etcd, err = etcdserver.Start(dir, strings.TrimPrefix(s.etcd, "http://")); err != nil {
		t.Fatal(err)
	}
	meet(t, 1, a)
	awaitThat(t, "it is ready", func() bool {
		code, _ := get(t, admin+"/readyz")
		return code == 200
	})
	etcd.Close()
	awaitThat(t, "etcd is lost", func() bool { return a.member.state() == "lost" })
	got = redis(t, a.At("resp"), "SET k 1 NX", "GET k", "DEL k", "FLUSHDB")
	if strings.Join(got[:3], " ") != "+OK 1 :1" || !strings.HasPrefix(got[3], "-ERR "+down) {
		t.Errorf("%q", got)
	}
}
