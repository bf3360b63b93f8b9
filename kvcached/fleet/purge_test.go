package fleet

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/semaphore"

	"github.com/cognitora/dataplane/kvcached/purge"
)

// slowRegister is a Register whose reads take as long as the test wants.
type slowRegister struct {
	Register
	begun atomic.Int64
	more  chan struct{} // a value ends one read
}

func (r *slowRegister) Refresh(ctx context.Context) error {
	r.begun.Add(1)
	select {
	case <-r.more:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestQuestionsShareARead checks hosts that ask for the list of purges during a read. They share
// the next read and never get the running one. A question that is broken off ends no other
// question.
func TestQuestionsShareARead(t *testing.T) {
	r := &slowRegister{more: make(chan struct{})}
	v := &View{o: Options{Register: r}, refreshes: refreshes{reading: semaphore.NewWeighted(1)}}
	var all sync.WaitGroup
	var answered atomic.Int64
	ask := func(ctx context.Context) {
		all.Go(func() {
			if err := v.refresh(ctx); err == nil {
				answered.Add(1)
			} else if !errors.Is(err, context.Canceled) || ctx.Err() == nil {
				t.Error(err)
			}
		})
	}
	waits := func() bool {
		v.refreshes.mu.Lock()
		defer v.refreshes.mu.Unlock()
		return v.refreshes.next != nil
	}
	ask(t.Context())
	eventually(t, "the first read begins", func() bool { return r.begun.Load() == 1 })
	second, end := context.WithCancel(t.Context())
	ask(second)
	eventually(t, "the second question waits", waits)
	for range 100 {
		ask(t.Context())
	}
	r.more <- struct{}{}
	eventually(t, "the second read begins", func() bool { return r.begun.Load() == 2 })
	eventually(t, "only the first is answered", func() bool { return answered.Load() == 1 })
	end()
	eventually(t, "the third read begins", func() bool { return r.begun.Load() == 3 })
	close(r.more)
	all.Wait()
	if n, reads := answered.Load(), r.begun.Load(); n != 101 || reads > 50 {
		t.Errorf("%d questions were answered with %d reads", n, reads)
	}
}

// TestEveryQuestionSeesEarlierPurges checks that the answer to a question has all purges that were
// added before it.
func TestEveryQuestionSeesEarlierPurges(t *testing.T) {
	a := start(t, "a", Options{})
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 8 {
				done, err := a.o.Register.Append(t.Context(), purge.Selector{Everything: true})
				if err != nil {
					t.Error(err)
					return
				}
				text, fresh, err := a.Purges(t.Context())
				if err != nil || !fresh {
					t.Error(fresh, err)
					return
				}
				if list, err := purge.Parse(text); err != nil || list.Revision < done.List.Revision {
					t.Error(list, err)
				}
			}
		})
	}
	all.Wait()
}
