package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cognitora/dataplane/agent/gpu"
	"github.com/cognitora/dataplane/agent/power"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/load"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// TestOfferAllocates: a reading for routers allocates nothing, with GPUs and power, and with any
// number of engines. No reading is made while no router follows.
func TestOfferAllocates(t *testing.T) {
	for _, engines := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(engines), func(t *testing.T) {
			a := idleAgent(t, engines)
			meter(t, a)
			if a.offer(); len(a.readings) != 0 {
				t.Fatal("it is read for nobody")
			}
			followed(t, a)
			if n := testing.AllocsPerRun(100, func() { a.offer() }); n != 0 {
				t.Errorf("%g allocations", n)
			}
			if len(a.readings) != engines {
				t.Fatalf("%d readings of %d engines", len(a.readings), engines)
			}
			watts := 0.0
			for i := range a.readings {
				r := &a.readings[i].Load
				watts += r.Watts.Or(0)
				if r.SMPct.Or(-1) != float64(10*i) || r.WattsAvg30.IsZero() || r.Power.At.IsZero() {
					t.Errorf("%+v", r)
				}
			}
			if watts < 999 || watts > 1001 {
				t.Errorf("%g W", watts)
			}
		})
	}
}

// idleAgent returns an agent that does not run. Each engine of the agent has one GPU.
func idleAgent(t *testing.T, engines int) *Agent {
	t.Helper()
	dir := t.TempDir()
	doc := fmt.Sprintf("[agent]\nadmin = \"unix://%s\"\n[etcd]\nendpoints = [%q]\n[telemetry]\nkernel = \"off\"\n",
		filepath.Join(dir, "admin"), shared.url)
	for i := range engines {
		doc += fmt.Sprintf("[[engine]]\nid = \"%d\"\nlisten = \"unix://%s\"\nurl = \"http://127.0.0.1:%d\"\ngpus = "+
			"[\"%d\"]\n", i, filepath.Join(dir, fmt.Sprint(i)), i+1, i)
	}
	c, err := loaded(t, doc)
	if err != nil {
		t.Fatal(err)
	}
	c.Logger = slog.New(slog.DiscardHandler)
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	return a
}

// meter sets four GPUs and a host power of 1000 W.
func meter(t *testing.T, a *Agent) {
	t.Helper()
	devices := make([]gpu.Device, 4)
	for i := range devices {
		devices[i] = gpu.Device{Name: fmt.Sprint(i), Index: i, Instance: -1, Watts: load.Known(float64(100 * (i + 1))),
			GPU: load.GPU{At: load.Taken{Time: time.Now()}, SMPct: load.Known(float64(10 * i))}}
	}
	h := a.host
	h.devices = func() []gpu.Device { return devices }
	h.power.Close()
	var err error
	c := power.Config{Interval: config.Duration(time.Hour), StaleAfter: config.Duration(time.Hour), RAPL: "off",
		IPMIDevice: "off"}
	if h.power, err = power.New(&c, h.gpuWatts, a.log); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); h.power.Run(ctx) }()
	eventually(t, "the power is known", func() bool { _, known := h.power.Node(); return known })
	stop()
	<-ended
}

// followed makes a router follow a; the router never asks.
func followed(t *testing.T, a *Agent) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- a.push.Serve(ctx, a.pushAt) }()
	conn, err := grpc.NewClient("unix:"+a.pushAt.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	if _, err := pb.NewLoadClient(conn).Follow(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a router follows", a.push.Following)
}
