package up

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// part is one program of `up`.
type part struct {
	Name  string `json:"name"`
	Where string `json:"where"`
	What  string `json:"what"`

	stop func() error // ends the part and waits for its end
}

// parts are the running parts, in the order of their start. The parts stop in reverse order.
type parts struct {
	list   []*part
	force  context.Context // ends when stop must not wait for requests any more
	cut    context.CancelFunc
	failed chan error // a part that has ended by itself
}

const mostParts = 1024

func newParts(force context.Context) *parts {
	ps := &parts{failed: make(chan error, mostParts)}
	ps.force, ps.cut = context.WithCancel(force)
	return ps
}

// add adds a part that is running already.
func (ps *parts) add(p part, stop func() error) {
	p.stop = stop
	ps.list = append(ps.list, &p)
}

// run starts fn as a part. The end of fn's first context means drain. The end of the second context
// means stop immediately.
func (ps *parts) run(p part, fn func(drain, force context.Context) error) {
	drain, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		err := fn(drain, ps.force)
		if drain.Err() == nil {
			ps.failed <- fmt.Errorf("%s stopped by itself: %w", p.Name,
				cmp.Or(err, errors.New("it ended without an error")))
		}
		done <- err
	}()
	ps.add(p, func() error {
		cancel()
		return <-done
	})
}

// stop ends all parts in reverse order, with a line for each. After limit the parts that are left
// do not wait for requests.
func (ps *parts) stop(w io.Writer, limit time.Duration) error {
	defer ps.cut()
	defer time.AfterFunc(limit, ps.cut).Stop()
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
