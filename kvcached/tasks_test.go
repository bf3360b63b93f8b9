package kvcached

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kvcached/store"
)

// TestSilentEnginesExpire checks that readers and silent engines are forgotten whatever the store
// does: here there is none, as if its index took forever to load.
func TestSilentEnginesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := residency.New(residency.Options{})
		d := &Daemon{index: x, log: slog.New(slog.DiscardHandler)}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			d.runTasks(ctx)
		}()
		n := block.Namespace{Model: "m", Revision: "-", DType: "-", Layout: "-", Tokens: 16, TP: 1, PP: 1}
		if err := x.Read("reader", n.String()); err != nil {
			t.Fatal(err)
		}
		x.EndRead("reader", n.String(), true)
		if err := x.Report(&residency.Report{Engine: "engine", Epoch: 1, Number: 1, Fresh: true}); err != nil {
			t.Fatal(err)
		}
		if st := x.Stats(); st.Readers != 1 || st.Engines != 1 {
			t.Errorf("%+v", st)
		}
		time.Sleep(engineSilence + 2*lookEvery)
		if st := x.Stats(); st.Readers != 0 || st.Engines != 0 {
			t.Errorf("%d readers, %d engines after a minute of silence", st.Readers, st.Engines)
		}
		stop()
		<-ended
	})
}

// TestUnkeptNotesAreLogged checks that notes that cannot be kept are logged, a line at a time, and
// that a part that has left RAM is no error.
func TestUnkeptNotesAreLogged(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{RAM: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	d := &Daemon{store: s, log: slog.New(slog.NewTextHandler(&log, nil))}
	d.notes.Every = notesEvery
	more := func([]byte) []byte { return []byte("note") }
	if err := d.annotate(t.Context(), block.Addr{}, more); err != nil || log.Len() > 0 {
		t.Errorf("%v, %s", err, &log)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := d.annotate(t.Context(), block.Addr{}, more); !errors.Is(err, store.ErrClosed) {
			t.Error(err)
		}
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "cannot be kept") {
		t.Error(got)
	}
}
