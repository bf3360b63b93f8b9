package batch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// syncEvery bounds the time whose answers a crash of the machine can lose.
const syncEvery = time.Second

// run is one run over a file.
type run struct {
	*sender
	in       *input
	out      *journal
	failures *failures
	progress *progress
}

// all sends every request that has no answer. After the end of ctx running requests end, and no
// other one is sent. An error stops them all.
func (r *run) all(ctx context.Context, concurrency int) error {
	r.retrying = r.progress.retrying
	group, inner := errgroup.WithContext(context.WithoutCancel(ctx))
	jobs, done := make(chan *job), make(chan struct{})
	group.Go(func() error {
		defer close(jobs)
		return r.read(ctx, inner, jobs)
	})
	var workers sync.WaitGroup
	workers.Add(concurrency)
	for range concurrency {
		group.Go(func() error {
			defer workers.Done()
			return r.work(ctx, inner, jobs)
		})
	}
	group.Go(func() error {
		workers.Wait()
		close(done)
		return nil
	})
	group.Go(func() error { return r.keep(done) })
	err := group.Wait()
	r.client.CloseIdleConnections()
	err = errors.Join(err, r.sync())
	r.failures.close()
	return err
}

// errEnough ends the reading of the file.
var errEnough = errors.New("enough")

// read passes on the requests that have no answer, until ctx or inner ends.
func (r *run) read(ctx, inner context.Context, jobs chan<- *job) error {
	err := r.in.each(func(j *job) error {
		answered, known := r.in.answered[digestOf(j.id)]
		if !known {
			return errors.New("the file has been changed since it was checked")
		}
		if answered {
			return nil
		}
		j.body = slices.Clone(j.body)
		select {
		case jobs <- j:
			return nil
		case <-ctx.Done():
			return errEnough
		case <-inner.Done():
			return errEnough
		}
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// work sends requests one after the other.
func (r *run) work(ctx, inner context.Context, jobs <-chan *job) error {
	for j := range jobs {
		answer, err := r.send(inner, ctx, j)
		if errors.Is(err, errStopped) {
			continue // the reader has ended too
		}
		if err != nil {
			return err
		}
		if answer.good() {
			err = r.out.append(answer)
		} else {
			err = r.failures.append(answer)
		}
		if err != nil {
			return err
		}
		r.progress.ended(answer.good())
	}
	return nil
}

// keep writes the progress, and syncs the files, until done is closed.
func (r *run) keep(done <-chan struct{}) error {
	t := time.NewTicker(syncEvery)
	defer t.Stop()
	for {
		select {
		case <-done:
			r.progress.last()
			return nil
		case <-t.C:
			r.progress.show()
			if err := r.sync(); err != nil {
				return err
			}
		}
	}
}

func (r *run) sync() error { return errors.Join(r.out.sync(), r.failures.sync()) }
