package etcdserver

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, dir, listen string) *Server {
	t.Helper()
	s, err := Start(dir, listen)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func client(t *testing.T, s *Server) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestKeepsItsDataAndItsPortOverARestart(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	s := start(t, dir, "127.0.0.1:0")
	at := s.Endpoint()
	c := client(t, s)
	if _, err := c.Put(ctx, "k", "v"); err != nil {
		t.Fatal(err)
	}
	c.Close()
	s.Close()

	s = start(t, dir, at)
	defer s.Close()
	c = client(t, s)
	defer c.Close()
	got, err := c.Get(ctx, "k")
	if err != nil || len(got.Kvs) != 1 || s.Endpoint() != at {
		t.Fatalf("after a restart on %s: %v %v at %s", at, got, err, s.Endpoint())
	}
}

// TestCloseDoesNotWaitForWatches: the watches of other processes would hold up the end for seconds.
func TestCloseDoesNotWaitForWatches(t *testing.T) {
	s := start(t, t.TempDir(), "127.0.0.1:0")
	c := client(t, s)
	defer c.Close()
	if r := <-c.Watch(t.Context(), "k", clientv3.WithCreatedNotify()); !r.Created {
		t.Fatal(r)
	}
	begin := time.Now()
	s.Close()
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("Close took %v", took)
	}
}

func TestGrantsLeasesOfOneSecond(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s := start(t, t.TempDir(), "127.0.0.1:0")
	defer s.Close()
	c := client(t, s)
	defer c.Close()
	lease, err := c.Grant(ctx, 1)
	if err != nil || lease.TTL != 1 {
		t.Fatalf("lease %+v, %v", lease, err)
	}
}

func TestATakenPortIsAnErrorThatNamesIt(t *testing.T) {
	s := start(t, t.TempDir(), "127.0.0.1:0")
	defer s.Close()
	second, err := Start(t.TempDir(), s.Endpoint())
	if err == nil {
		second.Close()
		t.Fatal("two servers on one port")
	}
	t.Log(err)
}
