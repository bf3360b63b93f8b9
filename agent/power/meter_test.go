package power

import (
	"context"
	"io/fs"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/internal/config"
)

// TestMeter runs all sources in virtual time, except Redfish, which needs a network.
func TestMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Config{Interval: config.Duration(second), BMCInterval: config.Duration(10 * second),
			StaleAfter: config.Duration(30 * second), RAPL: "off", IPMIDevice: "auto"}
		var gone atomic.Bool
		m, err := New(&c, func() (float64, time.Time, bool) { return 400, time.Now(), !gone.Load() }, quiet)
		if err != nil {
			t.Fatal(err)
		}
		m.gpuSeen = func() bool { return true }
		device := &script{answers: [][]byte{golden}}
		m.ipmi = func(string) (port, error) { return device, nil }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx) }()
		synctest.Wait()
		if r, known := m.Node(); !known || r.Watts != 250 || r.Source != "dcmi" {
			t.Errorf("%+v %v", r, known)
		}
		if list := m.Readings(); len(list) != 3 || list[0].Component != Node || list[1].Component != "system" ||
			list[2].Component != "gpu" {
			t.Errorf("%v", list)
		}

		// The BMC stops answering. The BMC's last reading is used until it is stale, then the sum
		// with the GPUs is used.
		device.silent()
		time.Sleep(29 * second)
		synctest.Wait()
		if r, _ := m.Node(); r.Watts != 250 || r.Age() != 29*second {
			t.Errorf("%+v, %v old", r, r.Age())
		}
		time.Sleep(2 * second)
		synctest.Wait()
		if r, _ := m.Node(); r.Watts != 400 || r.Source != "nvml" || r.Mean != 400 {
			t.Errorf("%+v", r)
		}
		gone.Store(true)
		time.Sleep(31 * second)
		synctest.Wait()
		if r, known := m.Node(); known {
			t.Errorf("all is stale: %+v", r)
		}
		if s := m.Sources(); s[1].Name != "dcmi" || s[1].State == "ok" || s[1].Read != 1 || s[1].Fail == 0 {
			t.Errorf("%+v", s)
		}
		cancel()
		<-done
		if !device.closed {
			t.Error("the device is left open")
		}
	})
}

func TestMeterReadsRedfish(t *testing.T) {
	s := serve(t, dmtf)
	c := Config{Interval: config.Duration(second), BMCInterval: config.Duration(second),
		StaleAfter: config.Duration(time.Minute), RAPL: "off", IPMIDevice: "off", Redfish: *s.settings()}
	m, err := New(&c, nil, quiet)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	for deadline, tick := time.After(time.Minute), time.Tick(5*time.Millisecond); ; {
		if r, known := m.Node(); known {
			if r.Watts != 374 || r.Source != "redfish" {
				t.Errorf("%+v", r)
			}
			break
		}
		select {
		case <-tick:
		case <-deadline:
			t.Fatalf("no reading; %+v", m.Sources())
		}
	}
	cancel()
	<-done
	if _, open, _ := s.count(); open != 0 {
		t.Errorf("%d sessions are left open", open)
	}
}

// TestAutoGivesUp: a host without the device or without DCMI is not asked again.
func TestAutoGivesUp(t *testing.T) {
	for name, open := range map[string]func(string) (port, error){
		"absent": func(string) (port, error) {
			return nil, &fs.PathError{Op: "open", Path: ipmiAuto, Err: fs.ErrNotExist}
		},
		"denied": func(string) (port, error) {
			return nil, &fs.PathError{Op: "open", Path: ipmiAuto, Err: fs.ErrPermission}
		},
		"no DCMI": func(string) (port, error) { return &script{answers: [][]byte{{0xc1}}}, nil },
	} {
		m, err := New(&Config{Interval: config.Duration(second), BMCInterval: config.Duration(second),
			StaleAfter: config.Duration(second), RAPL: "off", IPMIDevice: "auto"}, nil, quiet)
		if err != nil {
			t.Fatal(err)
		}
		m.ipmi = open
		m.followDCMI(t.Context()) // followDCMI gives up and returns
		if s := m.Sources()[1]; s.State == "starting" || s.Fail != 0 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
