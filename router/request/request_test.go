package request

import (
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/residue"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/traces"
)

// TestNothingOutlivesARequest checks that Reset clears every field. A field left over would carry
// one client's data to another client.
func TestNothingOutlivesARequest(t *testing.T) {
	r := New()
	residue.Mark(r, []string{"Scan", "Trace"}) // package scan recycles Scan
	tracer, err := traces.New(traces.Options{
		Endpoint: traces.Endpoint{Host: "127.0.0.1:1"}, Sample: 1, Queue: 1, Dropped: func(traces.Loss, int) {},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close()
	_, r.Trace = tracer.Begin(nil, time.Now())
	r.Reset()
	if left := residue.Left(r, "Scan"); left != nil {
		t.Errorf("left of a request: %v", left)
	}
}

func TestHeadIsCopied(t *testing.T) {
	var r Request
	path, pin := []byte("/v1/x?y"), []byte("node")
	r.SetHead(Head{Method: []byte("POST"), Path: path, Session: []byte{}, Pin: pin})
	copy(path, "#######")
	copy(pin, "####")
	if r.Method != "POST" || r.Path != "/v1/x?y" || r.Pin != "node" || r.Session == nil || r.Auth != nil {
		t.Errorf("%q %q pin %q session %q auth %q", r.Method, r.Path, r.Pin, r.Session, r.Auth)
	}
	if n := testing.AllocsPerRun(100, func() { r.SetHead(Head{Method: []byte("GET"), Path: path, Pin: pin}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestBodyIsReleasedOnce checks that the body is released once and that the model's name stays
// valid.
func TestBodyIsReleasedOnce(t *testing.T) {
	r := New()
	released := 0
	body := []byte(`{"model":"m","messages":[]}`)
	r.Own(body, func() { released++ })
	if err := r.Read(nil, nil); err != nil {
		t.Fatal(err)
	}
	r.Release()
	r.Release()
	clear(body)
	if released != 1 || r.Body() != nil || string(r.Asked()) != "m" {
		t.Errorf("released %d times, body %q, model %q", released, r.Body(), r.Asked())
	}
}

func TestReadChoosesByContentType(t *testing.T) {
	form := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n"
	r := New()
	r.API = scan.Audio
	r.Own([]byte(form), nil)
	if err := r.Read([]byte("Multipart/Form-Data; boundary=b"), nil); err != nil || string(r.Asked()) != "m" {
		t.Errorf("%v, model %q", err, r.Asked())
	}
	r.Scan.Reset()
	if err := r.Read([]byte("application/json"), scan.NewMemo(1<<20)); err == nil {
		t.Error("a form is read as JSON")
	}
}

func TestDeadline(t *testing.T) {
	var r Request
	later := time.Now().Add(time.Hour)
	if r.Expired() || r.Before(later) != later {
		t.Error("there is no deadline")
	}
	r.Deadline = later.Add(-time.Minute)
	if r.Expired() || r.Before(later) != r.Deadline {
		t.Error("the deadline is not the earlier one")
	}
	if r.Deadline = time.Now(); !r.Expired() {
		t.Error("it has not passed")
	}
}

// TestWaitEndsWithTheLife checks that Wait waits for its duration, and ends early if the request
// ends.
func TestWaitEndsWithTheLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Life
		began := time.Now()
		took := func() time.Duration { return time.Since(began) }
		if !l.Wait(time.Second) || took() != time.Second {
			t.Errorf("a wait of 1 s took %v", took())
		}
		time.AfterFunc(time.Second, l.Cancel)
		if l.Wait(time.Hour) || took() != 2*time.Second {
			t.Errorf("the end came after 2 s, but the wait ended after %v", took())
		}
		if l.Wait(time.Hour) || took() != 2*time.Second {
			t.Errorf("after the end a wait lasted until %v", took())
		}
	})
}

// TestAcquire checks that those who wait get room in the order of their arrival, and that a wait
// ends with its time and with the request.
func TestAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := make(chan struct{}, 1)
		var lives [4]Life
		got := make(chan int, len(lives))
		var done sync.WaitGroup
		for i := range lives {
			done.Go(func() {
				if lives[i].Acquire(slots, time.Hour) {
					got <- i
				}
			})
			synctest.Wait()
		}
		lives[1].Cancel()
		if began := time.Now(); new(Life).Acquire(slots, time.Minute) || time.Since(began) != time.Minute {
			t.Errorf("a wait of 1 minute took %v", time.Since(began))
		}
		for _, want := range []int{0, 2, 3} {
			if i := <-got; i != want {
				t.Errorf("%d got room, not %d", i, want)
			}
			synctest.Wait()
			<-slots
		}
		if done.Wait(); lives[1].Acquire(slots, time.Hour) || len(slots) != 0 {
			t.Error("room for a request that has ended")
		}
	})
}

// TestLife checks that an end cancels running and later attempts, and that its first reason stays.
func TestLife(t *testing.T) {
	var l Life
	begun := 0
	l.Begin = func() { begun++ }
	var first, second, third relay.Abort
	if l.Started() || !l.Enter(&first) || !l.Enter(&second) {
		t.Fatal("it does not begin")
	}
	l.Start()
	l.Start()
	l.Leave(&first)
	l.Leave(&first)
	l.Cancel()
	l.Shutdown()
	if begun != 1 || !l.Started() || l.Ended() != Left {
		t.Errorf("begun %d times, ended by %v", begun, l.Ended())
	}
	if first.Canceled() || !second.Canceled() || l.Enter(&third) {
		t.Error("the wrong ones are canceled")
	}
}
