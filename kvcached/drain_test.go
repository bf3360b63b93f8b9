package kvcached

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/rdma"
)

// TestASecondSignalCutsTheClosingShort checks that a second signal ends the process without closing
// the stores in order. The next start finds the durable blocks.
func TestASecondSignalCutsTheClosingShort(t *testing.T) {
	dir := t.TempDir()
	c, log := settings(t, dir, nil)
	d, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	drain, first := context.WithCancel(context.Background())
	force, second := context.WithCancel(context.Background())
	defer first()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(drain, force) }()
	request, _ := http.NewRequest("PUT", "http://"+d.At("s3")+"/bucket/key", strings.NewReader("object"))
	request.Header.Set("X-Cgn-Durable", "true")
	r, err := http.DefaultClient.Do(request)
	if err != nil || r.StatusCode != 200 {
		t.Fatal(r, err)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	r.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	second()
	first()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), `drain step cut short" step="close the stores`) {
		t.Errorf("it was closed in order:\n%s", log)
	}
	d, _ = begin(t, c)
	if code, body := get(t, "http://"+d.At("s3")+"/bucket/key"); code != 200 || body != "object" {
		t.Errorf("%d %q", code, body)
	}
}

// TestADiskThatDoesNotAnswer checks that the drain does not wait for a stuck disk longer than
// stuckLimit.
func TestADiskThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		err := within(ctx, stuckLimit, errStuck, func() error {
			<-answers
			return nil
		})
		if took := time.Since(begun); !errors.Is(err, errStuck) || took != time.Minute+stuckLimit {
			t.Error(err, took)
		}
		close(answers)
		if err := within(ctx, stuckLimit, errStuck, func() error { return io.EOF }); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

// stuckDevice is an RDMA device whose driver does not answer.
type stuckDevice struct {
	rdma.Device
	registers, closes, gone chan struct{}
}

func (d *stuckDevice) Register([]byte) error { <-d.registers; return nil }
func (d *stuckDevice) Close() error          { <-d.closes; return nil }
func (d *stuckDevice) Gone() <-chan struct{} { return d.gone }
func (d *stuckDevice) Limits() rdma.Limits   { return rdma.Limits{} }
func (d *stuckDevice) Pair(rdma.PairOptions) (rdma.Pair, error) {
	return stuckPair{}, nil
}

type stuckPair struct{ rdma.Pair }

func (stuckPair) Local() rdma.Endpoint { return rdma.Endpoint{} }
func (stuckPair) Close() error         { return nil }

// TestADeviceThatDoesNotAnswer checks that the drain waits only a limited time for a stuck device,
// then closes the stores. The arena stays mapped because the device may still use it.
func TestADeviceThatDoesNotAnswer(t *testing.T) {
	answers := make(chan struct{})
	close(answers)
	for what, stuck := range map[string]func(d *stuckDevice) (answers chan struct{}){
		"registers": func(d *stuckDevice) chan struct{} { d.registers = make(chan struct{}); return d.registers },
		"closes":    func(d *stuckDevice) chan struct{} { d.closes = make(chan struct{}); return d.closes },
		"answers":   func(d *stuckDevice) chan struct{} { return make(chan struct{}) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dev, there := &stuckDevice{registers: answers, closes: answers, gone: make(chan struct{})},
					atomic.Bool{}
				answer := stuck(dev)
				s, err := store.Open(t.Context(), store.Options{RAM: 1 << 20})
				if err != nil {
					t.Fatal(err)
				}
				memory := s.Arena().Slice(0, 1)
				rails, err := transport.NewRails(transport.RailsOptions{
					Wanted: []string{"mlx5_0"}, Memory: memory, Logger: slog.New(slog.DiscardHandler),
					Open: func(string) (rdma.Device, error) { return dev, nil },
					Present: func() map[string]string {
						if there.Load() {
							return map[string]string{"mlx5_0": "1"}
						}
						return nil
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				there.Store(true)
				time.Sleep(time.Minute) // virtual time; by then the device is being opened, or is open
				d := &Daemon{store: s, rails: rails}
				ctx, cancel := context.WithTimeout(t.Context(), leaveLimit)
				defer cancel()
				begun := time.Now()
				err = d.closeDevices(ctx)
				if took := time.Since(begun); what != "answers" && (!errors.Is(err, errStuckDevice) ||
					took != leaveLimit+deviceLimit) || what == "answers" && (err != nil || took != 0) {
					t.Error(err, took)
				}
				rails.Cards() // Cards does not wait for the device either
				if err := d.closeStore(ctx); err != nil {
					t.Error(err)
				}
				begun = time.Now()
				err = d.ended(func() error { time.Sleep(time.Minute); return io.EOF })
				if took := time.Since(begun); what != "answers" && (!errors.Is(err, errStuckDevice) ||
					took != deviceLimit) || what == "answers" && (!errors.Is(err, io.EOF) || took != time.Minute) {
					t.Error("a part that takes long:", err, took)
				}
				time.Sleep(time.Minute)
				if mapped(memory) != (what != "answers") {
					t.Error("the memory is mapped, or not")
				}
				close(answer)
			})
		})
	}
}

// mapped tells whether memory can be read.
func mapped(memory []byte) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { ok = recover() == nil }()
	_ = fmt.Sprint(memory[0])
	return true
}
