package batch

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cognitora/dataplane/ctl/screen"
)

// lineEvery is the time between two lines of progress in a log.
const lineEvery = 10 * time.Second

// progress counts a run's requests and writes lines about them.
type progress struct {
	w             io.Writer
	terminal      bool
	total, before int
	begun, shown  time.Time

	mu                       sync.Mutex
	answered, failed, paused int
}

func newProgress(w io.Writer, total, before int) *progress {
	now := time.Now()
	return &progress{w: w, terminal: screen.IsTerminal(w), total: total, before: before, begun: now, shown: now}
}

// ended counts a request that has its answer, or has failed.
func (p *progress) ended(good bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if good {
		p.answered++
	} else {
		p.failed++
	}
}

// retrying counts requests that wait to be sent again.
func (p *progress) retrying(change int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused += change
}

// show writes the progress if it is time. One goroutine calls show and last.
func (p *progress) show() {
	switch {
	case p.terminal:
		fmt.Fprint(p.w, "\r\x1b[K"+p.line())
	case time.Since(p.shown) >= lineEvery:
		p.shown = time.Now()
		fmt.Fprintln(p.w, p.line())
	}
}

// last writes the progress at the end.
func (p *progress) last() {
	if p.terminal {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	fmt.Fprintln(p.w, p.line())
}

func (p *progress) line() string {
	s := p.summary()
	rate := float64(s.Answered+s.Failed) / s.Seconds
	text := fmt.Sprintf("%d of %d done, %.1f/s", s.Before+s.Answered+s.Failed, s.Requests, rate)
	if rate > 0 && s.Unanswered > 0 {
		left := time.Duration(float64(s.Unanswered) / rate * float64(time.Second))
		text += fmt.Sprintf(", %v left", left.Round(time.Second))
	}
	text += fmt.Sprintf(", %d failed", s.Failed)
	p.mu.Lock()
	paused := p.paused
	p.mu.Unlock()
	if paused > 0 {
		text += fmt.Sprintf(", %d wait to be tried again", paused)
	}
	return text
}

// summary returns the counts so far.
func (p *progress) summary() Summary {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Summary{
		Requests: p.total, Before: p.before, Answered: p.answered, Failed: p.failed,
		Unanswered: p.total - p.before - p.answered - p.failed,
		Seconds:    max(time.Since(p.begun), time.Millisecond).Seconds(),
	}
}
