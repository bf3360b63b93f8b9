package kvevents

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
)

// TestOneFollowerOfARank checks that a rank that leaves and comes back at once has no second
// follower before the first has ended, however often it leaves.
func TestOneFollowerOfARank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, answer := 0, make(chan struct{})
		f := New(Options{Logger: slog.New(slog.DiscardHandler), Model: func(string) string {
			asked++
			<-answer // the follower cannot end here
			return ""
		}})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		synctest.Wait()
		rank := []Source{{Node: "a", Name: "a", Endpoint: "tcp://127.0.0.1:1"}}
		for range 3 {
			f.Set(rank)
			synctest.Wait()
			f.Set(nil)
		}
		f.Set(rank)
		synctest.Wait()
		if asked != 1 {
			t.Errorf("%d followers run", asked)
		}
		close(answer)
		synctest.Wait()
		if asked != 2 || len(f.ending) != 0 {
			t.Errorf("once the first has ended: asked %d times, %d are ending", asked, len(f.ending))
		}
		stop()
		<-done
	})
}

// TestTooManyRanks checks that the log says how many ranks are left out.
func TestTooManyRanks(t *testing.T) {
	var log bytes.Buffer
	f := New(Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	var ranks []Source
	for i := range 32 * 9 {
		node := fmt.Sprint("engine-", i/9)
		ranks = append(ranks, Source{Node: node, Name: fmt.Sprint(node, "/", i%9), Rank: i % 9})
	}
	f.Set(ranks)
	f.Set(ranks)
	if text := log.String(); strings.Count(text, "ranks_followed=256 ranks_left_out=32") != 1 ||
		len(f.wanted) != maxSources {
		t.Errorf("%d are followed: %s", len(f.wanted), text)
	}
	log.Reset()
	f.Set(ranks[:maxSources-1])
	if log.Len() > 0 {
		t.Error(log.String())
	}
}
