package kv

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/ctl/cache"
	"github.com/cognitora/dataplane/ctl/ctltest"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

func TestKVPeers(t *testing.T) {
	srv := &ctltest.LaneServer{Told: &pb.PeersResponse{
		Peers: []*pb.PeerPath{
			{
				Peer: "gpu2", Address: "10.0.0.2:7443", Wanted: "auto", Lane: "rdma", Pairs: 2, GrantsHeld: 5,
				GrantsGiven: 7,
				Lanes: []*pb.LaneUse{{Lane: "rdma", Operations: 9, Bytes: 9 << 20, Fallbacks: 61}, {
					Lane: "quic", Operations: 3, Bytes: 4096, Errors: 52, LastError: "no answer in time",
					LastErrorUnixMs: time.Now().Add(-80 * time.Second).UnixMilli(),
				}}, SilentSinceUnixMs: time.Now().Add(-70 * time.Second).UnixMilli(),
			},
			{
				Peer: "gpu3", Address: "10.0.0.3:7443", Wanted: "auto", Lane: "quic",
				WhyNotRdma:      "its address is in none of rdma.trusted_networks",
				LastError:       "probe: the other side does not answer",
				LastErrorUnixMs: time.Now().Add(-90 * time.Second).UnixMilli(),
			},
		},
		Devices: []*pb.RdmaDevice{{Name: "rxe0", State: pb.RdmaDevice_STATE_OPEN},
			{Name: "rxe1", State: pb.RdmaDevice_STATE_RELEASED, Why: "cgn-ctl rdma release"}},
	}}
	env := map[string]string{cache.Variable: ctltest.Serve(t, srv)}
	out, err := ctl(t, env, "kv", "peers")
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "9.0 MiB in 9", "4.0 KiB in 3", "gpu3: not over RDMA: its address is in none",
		"last error of RDMA, 1m3", "s ago: probe", "rxe1    released  cgn-ctl rdma release", "rxe0    open      -",
		"  52  ", "  61  ", "silent for 1m1", "gpu2: last error over QUIC, 1m2", "s ago: no answer in time",
		"  answers  ")
	out, err = ctl(t, env, "kv", "peers", "-o", "json")
	var v peerPaths
	if err != nil || json.Unmarshal([]byte(out), &v) != nil || len(v.Peers) != 2 ||
		v.Peers[0].Lanes["rdma"].Bytes != 9<<20 || v.Peers[1].WhyNotRDMA == "" || len(v.Devices) != 2 {
		t.Errorf("%v: %s", err, out)
	}
	srv.Told = &pb.PeersResponse{Unknown: "etcd is away"}
	if out, err = ctl(t, env, "kv", "peers"); err != nil || !strings.Contains(out, "not known yet: etcd is away") ||
		strings.Contains(out, "knows no other") {
		t.Errorf("%v: %s", err, out)
	}
	srv.Told = &pb.PeersResponse{}
	if out, err = ctl(t, env, "kv", "peers"); err != nil || !strings.Contains(out, "knows no other") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestWhyNotRDMAOnce: a reason that many hosts share is printed once. The reason is not printed for
// a host that cannot be reached at all.
func TestWhyNotRDMAOnce(t *testing.T) {
	const why = "no card is open here: mlx5_0: it is not there"
	told := &pb.PeersResponse{}
	for i := range 30 {
		told.Peers = append(told.Peers, &pb.PeerPath{Peer: fmt.Sprint("gpu", i), Lane: "quic", WhyNotRdma: why,
			LastError: why, LastErrorUnixMs: time.Now().UnixMilli()})
	}
	told.Peers = append(told.Peers, &pb.PeerPath{
		Peer: "lost", WhyNotRdma: "it was built without", SilentSinceUnixMs: time.Now().UnixMilli(),
		Lanes: []*pb.LaneUse{{Lane: "tls", LastError: "certificate signed by unknown authority",
			LastErrorUnixMs: time.Now().UnixMilli()}},
	})
	out, err := ctl(t, map[string]string{cache.Variable: ctltest.Serve(t, &ctltest.LaneServer{Told: told})}, "kv",
		"peers")
	if err != nil || strings.Count(out, why) != 1 || strings.Contains(out, "built without") {
		t.Errorf("%v: %s", err, out)
	}
	ctltest.Want(t, out, "\ngpu0, gpu1, gpu2, gpu3 and 26 more: not over RDMA: "+why,
		"lost: last error over TLS, 0s ago: certificate signed by unknown authority")
}

// TestPeersNotTold checks the output for a daemon without devices, for a daemon of another version,
// and for flags that name two daemons.
func TestPeersNotTold(t *testing.T) {
	_, sock := ctltest.StartCache(t)
	env := map[string]string{cache.Variable: sock}
	if out, err := ctl(t, env, "kv", "peers"); err != nil || !strings.Contains(out, "knows no other") {
		t.Errorf("%v: %s", err, out)
	}
	env[cache.Variable] = ctltest.Serve(t, &pb.UnimplementedKvServer{})
	if _, err := ctl(t, env, "kv", "peers"); err == nil ||
		!strings.Contains(err.Error(), "does not tell about its peers") {
		t.Error(err)
	}
	if _, err := ctl(t, nil, "kv", "peers", "--sock", sock, "--address", "127.0.0.1:1"); err == nil ||
		!strings.Contains(err.Error(), "--sock and --address both") {
		t.Error(err)
	}
}
