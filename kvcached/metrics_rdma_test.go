package kvcached

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// count writes counter files of a port of rxe0 below root.
func count(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		at := filepath.Join(root, "sys/class/infiniband/rxe0/ports/1", name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRDMACounters checks that known counters are exported and unknown ones left out. Devices are
// read once a second at most.
func TestRDMACounters(t *testing.T) {
	root, now := t.TempDir(), time.Unix(1, 0)
	var asked int
	c := &rdmaCounters{root: root, now: func() time.Time { return now },
		names: func() []string { asked++; return []string{"rxe0", "rxe1", "rxe0"} }}
	set := metric.NewSet()
	set.Read(rdmaDeviceDefs(), c.emit)
	scrape := func() string {
		w := httptest.NewRecorder()
		set.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return w.Body.String()
	}
	expect := func(name string, value int) {
		t.Helper()
		if line := fmt.Sprintf("cgn_kvcached_rdma_device_%s{device=\"rxe0\",port=\"1\"} %d\n", name,
			value); !strings.Contains(scrape(), line) {
			t.Errorf("want %s in\n%s", line, scrape())
		}
	}
	count(t, root, map[string]string{"state": "4: ACTIVE", "hw_counters/rcvd_pkts": "7",
		"hw_counters/rcvd_seq_err": "1", "hw_counters/of_tomorrow": "5", "counters/port_rcv_data": "N/A (no PMA)"})
	expect("received_packets_total", 7)
	expect("sequence_errors_total", 1)
	expect("up", 1)
	if page := scrape(); strings.Contains(page, "tomorrow") || strings.Contains(page, "received_bytes") ||
		strings.Contains(page, "rxe1") || asked != 1 {
		t.Errorf("asked %d times\n%s", asked, page)
	}
	count(t, root, map[string]string{"state": "1: DOWN", "hw_counters/rcvd_pkts": "9"})
	now = now.Add(rdmaCountersEvery - 1)
	expect("received_packets_total", 7)
	now = now.Add(1)
	expect("received_packets_total", 9)
	expect("up", 0)
	// A removed device has no values, and neither has a daemon without devices.
	if err := os.RemoveAll(filepath.Join(root, "sys")); err != nil {
		t.Fatal(err)
	}
	now = now.Add(rdmaCountersEvery)
	if page := scrape(); strings.Contains(page, "rdma_device") {
		t.Error(page)
	}
	c.names = nil
	if page := scrape(); strings.Contains(page, "rdma_device") {
		t.Error(page)
	}
}

// TestDeviceThatIsNotThere checks that a configured device which is not open has a value for the
// alert.
func TestDeviceThatIsNotThere(t *testing.T) {
	for _, name := range []string{"auto", "mlx5_0"} {
		rails, err := transport.NewRails(transport.RailsOptions{Wanted: []string{name},
			Present: func() map[string]string { return nil }, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		in := newInstruments()
		in.rails = rails
		in.defineRDMA()
		w := httptest.NewRecorder()
		in.set.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		if line := fmt.Sprintf("cgn_kvcached_rdma_device_open{device=%q} 0\n", name); !strings.Contains(w.Body.String(),
			line) {
			t.Errorf("no %s in %s", line, w.Body.String())
		}
		if err := rails.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestAStuckDevice checks that a scrape does not wait for another scrape that a driver blocks.
func TestAStuckDevice(t *testing.T) {
	stuck, answer, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	c := &rdmaCounters{root: t.TempDir(), now: time.Now, names: func() []string {
		close(stuck)
		<-answer
		return nil
	}}
	go func() {
		defer close(done)
		c.read()
	}()
	<-stuck
	if got := c.read(); got != nil {
		t.Errorf("%+v", got)
	}
	close(answer)
	<-done
}

// TestRDMAIsMissing checks when demanded RDMA counts as missing: while blocks are requested and
// cannot be read by RDMA.
func TestRDMAIsMissing(t *testing.T) {
	now := time.Unix(1e9, 0)
	demanded := transport.Target{Cards: transport.Demanded}
	for name, c := range map[string]struct {
		s    transport.PeerStatus
		want bool
	}{
		"asked for":             {transport.PeerStatus{Target: demanded, Error: "a pair broke", Missed: now.Add(-time.Minute)}, true},
		"a link that came back": {transport.PeerStatus{Target: demanded, Error: "a pair broke", Missed: now.Add(-time.Hour)}, false},
		"never asked for":       {transport.PeerStatus{Target: demanded, Error: "a pair broke"}, false},
		"is being made":         {transport.PeerStatus{Target: demanded, Missed: now}, false},
		"is read":               {transport.PeerStatus{Target: demanded, RDMA: true, Error: "a pair broke", Missed: now}, false},
		"not demanded":          {transport.PeerStatus{Target: transport.Target{Cards: transport.Trusted}, Error: "a pair broke", Missed: now}, false},
	} {
		if isMissing(&c.s, now) != c.want {
			t.Errorf("%s: missing is not %v", name, c.want)
		}
	}
}
