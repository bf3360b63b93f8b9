package leg

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/router/fleet"
)

// TestFactsAreAskedForOnce checks that requests share a question, and when it is asked again.
func TestFactsAreAskedForOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := newFacts(), new(errands)
		var asked atomic.Int64
		var fails atomic.Bool
		get := func() (string, error) {
			x := f.get("a", e, func() ([]byte, error) {
				time.Sleep(time.Second)
				if n := asked.Add(1); !fails.Load() {
					return fmt.Append(nil, n), nil
				}
				return nil, errors.New("no answer")
			})
			<-x.done
			return string(x.doc), x.err
		}
		want := func(doc string, questions int64) {
			t.Helper()
			if got, err := get(); got != doc || err != nil || asked.Load() != questions {
				t.Errorf("%q, %v after %d questions; want %q after %d", got, err, asked.Load(), doc, questions)
			}
		}
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { want("1", 1) })
		}
		all.Wait()
		time.Sleep(factLife - time.Minute)
		want("1", 1)
		time.Sleep(time.Minute)
		want("2", 2)
		f.forget("a")
		f.forget("unknown")
		want("3", 3)

		fails.Store(true)
		f.forget("a")
		for range 3 { // the failure counts for a moment
			if _, err := get(); err == nil || asked.Load() != 4 {
				t.Errorf("%v after %d questions", err, asked.Load())
			}
			f.forget("a")
		}
		fails.Store(false)
		time.Sleep(factRetry)
		want("5", 5)
		e.end()
		f.forget("a")
		if _, err := get(); err != errErrands {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestFactsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := newFacts(), new(errands)
		for i := range maxFacts + 100 {
			x := f.get(fmt.Sprint(i), e, func() ([]byte, error) { return nil, nil })
			if <-x.done; x.err != nil {
				t.Fatal(x.err)
			}
		}
		if len(f.known) != maxFacts {
			t.Errorf("%d facts are kept", len(f.known))
		}
		e.end()
	})
}

func TestErrandsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := new(errands)
		release, ran := make(chan struct{}), atomic.Int64{}
		for range maxErrands {
			if !e.start(1, func() { <-release; ran.Add(1) }) {
				t.Fatal("too many")
			}
		}
		if e.start(0, func() {}) {
			t.Error("more errands than allowed")
		}
		close(release)
		synctest.Wait()
		if !e.start(maxErrandBytes, func() { time.Sleep(time.Second); ran.Add(1) }) {
			t.Error("no errand after the others have ended")
		}
		if e.start(1, func() {}) {
			t.Error("more bytes than allowed")
		}
		e.end()
		if n := ran.Load(); n != maxErrands+1 {
			t.Errorf("%d errands have run at the end", n)
		}
		if e.start(0, func() {}) {
			t.Error("an errand after the end")
		}
	})
}

// TestErrandThatPanics checks that a panic ends only the errand, and is reported.
func TestErrandThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got any
		e := &errands{bug: func(p any) { got = p }}
		e.start(5, func() { panic("oops") })
		synctest.Wait()
		if got != "oops" || e.count != 0 || e.bytes != 0 {
			t.Errorf("%v; %d errands of %d bytes are left", got, e.count, e.bytes)
		}
		e.end()
	})
}

// TestRefusedKeysAreNotKept checks that a node's refusal of one client's key fails no other client,
// neither later nor while they wait together.
func TestRefusedKeysAreNotKept(t *testing.T) {
	var questions atomic.Int64
	begun, release := make(chan struct{}, 1), make(chan struct{})
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		questions.Add(1)
		switch r.Header.Get("Authorization") {
		case "Bearer good":
			w.Write([]byte("doc"))
		case "Bearer slow":
			begun <- struct{}{}
			<-release
			w.WriteHeader(http.StatusForbidden)
		case "Bearer broken":
			w.WriteHeader(http.StatusBadRequest)
		default:
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(node.Close)
	d := still(t, Options{}, fleet.Backend{URL: node.URL, ID: "a", Model: "sim"})
	n, r := d.current().models["sim"].pools[Answer].members[0], asked(t, d, chat(100))
	get := func(key string) error {
		l := d.Leg(r, Question{}, nil)
		defer l.recycle()
		doc, err := l.fact("a/x", func() ([]byte, error) { return askNode(n, "/x", []byte(key)) })
		if err == nil && string(doc) != "doc" {
			t.Errorf("the fact is %q", doc)
		}
		return err
	}
	want := func(key string, fails error, after int64) {
		t.Helper()
		if err := get(key); !errors.Is(err, fails) || (err == nil) != (fails == nil) || questions.Load() != after {
			t.Errorf("%q: %v after %d questions; want %v after %d", key, err, questions.Load(), fails, after)
		}
	}
	want("", errKey, 1)
	want("Bearer bad", errKey, 2)
	slow, good := make(chan error, 1), make(chan error, 1)
	go func() { slow <- get("Bearer slow") }()
	<-begun
	go func() { good <- get("Bearer good") }()
	close(release)
	if err := <-slow; !errors.Is(err, errKey) {
		t.Error(err)
	}
	if err := <-good; err != nil {
		t.Error(err)
	}
	want("Bearer bad", nil, questions.Load()) // the fact is known
	d.facts.forget("a/x")
	now := questions.Load()
	if err := get("Bearer broken"); err == nil || errors.Is(err, errKey) {
		t.Error(err)
	}
	if err := get("Bearer good"); err == nil || questions.Load() != now+1 {
		t.Errorf("%v after %d questions, want another failure to be kept for a moment", err, questions.Load()-now)
	}
	d.errands.end()
}
