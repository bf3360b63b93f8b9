package kvcached

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// TestOneBlockByEveryWay stores a block address through RESP. Another host reads the block over
// both lanes, and a gRPC client reads the block on this host.
func TestOneBlockByEveryWay(t *testing.T) {
	dir := t.TempDir()
	c, _ := settings(t, dir, nil)
	d, _ := begin(t, c)
	space := block.Namespace{Model: "m", Revision: "r", DType: "bf16", Layout: "l", Tokens: 16, TP: 1, PP: 1}
	a := block.Addr{Digest: block.Digest{1, 2, 3}, Model: space.ID(), Layer: block.LayerAll}
	if got := redis(t, d.At("resp"), "SET "+block.Text(space.String(), a)+" hello"); got[0] != "+OK" {
		t.Fatal(got)
	}
	id, err := pki.Load(pki.FilesIn(filepath.Join(dir, "pki"), pki.Ctl))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := transport.NewPool(transport.PoolOptions{Identity: id})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, lane := range []transport.Lane{transport.QUIC, transport.TLS} {
		peer, err := pool.Peer(transport.Target{Address: d.At("quic"), Lane: lane})
		if err != nil {
			t.Fatal(err)
		}
		var into []byte
		_, err = peer.Get(t.Context(), transport.Get{Addr: a, Namespace: space.String(),
			Alloc: func(_ transport.Found, n int) ([]byte, error) {
				into = make([]byte, n)
				return into, nil
			}})
		if err != nil || string(into) != "hello" {
			t.Errorf("%s: %q, %v", lane, into, err)
		}
		missing := a
		missing.Layer = 1
		infos := make([]wire.Info, 2)
		if err := peer.Stat(t.Context(), []block.Addr{missing, a}, infos); err != nil || infos[0].Tiers != 0 ||
			infos[1].Length != 5 {
			t.Errorf("%s: %v %+v", lane, err, infos)
		}
		_, err = peer.Get(t.Context(), transport.Get{Addr: missing, Namespace: space.String(),
			Alloc: func(transport.Found, int) ([]byte, error) { return nil, nil }})
		if !errors.Is(err, wire.Miss) {
			t.Errorf("%s: %v", lane, err)
		}
	}
	conn, err := grpc.NewClient("unix://"+d.At("grpc-sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r, err := pb.NewKvClient(conn).Lookup(t.Context(), &pb.LookupRequest{Namespace: space.String(), Layer: a.Layer,
		Digest: a.Digest[:]})
	if err != nil || r.Tiers&uint32(pb.Tier_TIER_HOST) == 0 || r.Length != 5 {
		t.Errorf("%v %v", r, err)
	}
}

func TestCertificatesAreMadeOnce(t *testing.T) {
	dir := t.TempDir()
	c, log := settings(t, dir, nil)
	for range 2 {
		_, stop := begin(t, c)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "certificates made"); n != 1 {
		t.Errorf("certificates were made %d times", n)
	}
}
