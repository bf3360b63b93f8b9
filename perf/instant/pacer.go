package instant

import (
	"sync"
	"time"
)

const (
	slotWidth = time.Millisecond
	slotCount = 1 << 12 // 4 s; a token that is due later goes round more than once
)

// pacer sends the tokens of all paced streams from one goroutine, a slot at a time.
type pacer struct {
	base    time.Time
	stopped chan struct{}
	done    sync.WaitGroup

	mu    sync.Mutex
	slots [slotCount][]*streamedAnswer
	now   int64 // slot that is being sent
	spare []*streamedAnswer
	woken chan struct{} // signalled when a stream was added to an empty wheel
	held  int
}

func (p *pacer) start() {
	p.base, p.stopped, p.woken = time.Now(), make(chan struct{}), make(chan struct{}, 1)
	p.done.Go(p.run)
}

func (p *pacer) stop() {
	close(p.stopped)
	p.done.Wait()
}

// add makes s send at due, or in the next slot if due has passed.
func (p *pacer) add(s *streamedAnswer, due time.Time) {
	s.due = due
	p.mu.Lock()
	at := max(int64(due.Sub(p.base)/slotWidth), p.now+1)
	p.slots[at%slotCount] = append(p.slots[at%slotCount], s)
	p.held++
	first := p.held == 1
	p.mu.Unlock()
	if first {
		select {
		case p.woken <- struct{}{}:
		default:
		}
	}
}

func (p *pacer) run() {
	for {
		p.mu.Lock()
		idle := p.held == 0
		p.mu.Unlock()
		if idle {
			select {
			case <-p.woken:
			case <-p.stopped:
				return
			}
		}
		select {
		case <-p.stopped:
			return
		case <-time.After(slotWidth - time.Since(p.base)%slotWidth):
		}
		target := int64(time.Since(p.base) / slotWidth)
		p.mu.Lock()
		from := max(p.now, target-slotCount) // after a pause, each slot once
		p.mu.Unlock()
		for slot := from + 1; slot <= target; slot++ {
			p.send(slot)
		}
	}
}

// send sends the tokens that are due in one slot.
func (p *pacer) send(slot int64) {
	p.mu.Lock()
	p.now = slot
	due := p.slots[slot%slotCount]
	p.slots[slot%slotCount] = p.spare[:0]
	p.held -= len(due)
	p.mu.Unlock()
	for i, s := range due {
		due[i] = nil
		if s.over.Load() {
			continue
		}
		if int64(s.due.Sub(p.base)/slotWidth) > slot {
			p.add(s, s.due)
			continue
		}
		s.send(p)
	}
	p.spare = due
}
