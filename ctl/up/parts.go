package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// part is one thing that `up` runs.
type part struct {
	Name  string `json:"name"`
	Where string `json:"where"`
	What  string `json:"what"`

	stop func() error // ends it and waits until it has ended
}

// parts are what runs, in the order it was started. They stop in reverse.
type parts struct {
	list   []*part
	force  context.Context // ends when stopping must not wait for requests
	failed chan error      // a part that ended by itself
}

const mostParts = 1024

func newParts(force context.Context) *parts {
	return &parts{force: force, failed: make(chan error, mostParts)}
}

// add takes charge of something that is running already.
func (ps *parts) add(p part, stop func() error) {
	p.stop = stop
	ps.list = append(ps.list, &p)
}

// run starts fn, whose first context ends when the part is to drain and whose
// second one ends when it must stop at once.
func (ps *parts) run(p part, fn func(drain, force context.Context) error) {
	drain, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		err := fn(drain, ps.force)
		if drain.Err() == nil {
			ps.failed <- fmt.Errorf("%s stopped by itself: %w", p.Name, orEnded(err))
		}
		done <- err
	}()
	ps.add(p, func() error {
		cancel()
		return <-done
	})
}

func orEnded(err error) error {
	if err == nil {
		return errors.New("it ended without an error")
	}
	return err
}

// stop ends all parts, the last started first, with a line for each.
func (ps *parts) stop(w io.Writer) error {
	var errs []error
	for len(ps.list) > 0 {
		last := ps.list[len(ps.list)-1]
		ps.list = ps.list[:len(ps.list)-1]
		start := time.Now()
		err := last.stop()
		if err != nil {
			err = fmt.Errorf("%s: %w", last.Name, err)
			fmt.Fprintf(w, "stopped %-10s %6.2f s  %v\n", last.Name, time.Since(start).Seconds(), err)
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(w, "stopped %-10s %6.2f s\n", last.Name, time.Since(start).Seconds())
	}
	return errors.Join(errs...)
}
