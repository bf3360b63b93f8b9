package compare

import (
	"fmt"
	"time"

	"github.com/cognitora/dataplane/perf/load"
)

const (
	probeWindow = 3 * time.Second // window of one try of the search
	heldShare   = 0.99            // least share of the tokens due in the window that counts as held
	heldTries   = 4               // tries of the whole window; each has a tenth fewer streams
)

// held finds how many streams of Rate tokens/s the contestant relays in time, and holds them for
// the whole window. held checks every token of every stream, also during the search.
func (m *measurement) held() (Figures, error) {
	if err := m.warm(); err != nil {
		return nil, err
	}
	most, full := m.Streams, m.seconds
	m.seconds = min(probeWindow, full)
	good, bad := 0, most+1
	for n := max(1, most/8); good < most && bad-good > max(1, good/10); {
		r, err := m.hold(m.window(m.warmup()), n)
		if err != nil {
			return nil, err
		}
		if m.holds(r, n) {
			good = n
		} else {
			bad = n
		}
		if bad > most {
			n = min(n+max(1, n/2), most)
		} else {
			n = (good + bad) / 2
		}
	}
	m.seconds = full
	for range heldTries {
		if good < 1 {
			break
		}
		w := m.window(m.warmup())
		r, err := m.hold(w, good)
		if err != nil {
			return nil, err
		}
		if m.holds(r, good) {
			f, err := m.figures(w, r, r.Tokens)
			if err == nil {
				f.quantiles("", r.Token)
				f["streams"] = float64(good)
			}
			return f, err
		}
		m.note("%d streams were not held for %.0f s: %.0f tokens/s, failed %v", good, full.Seconds(),
			float64(r.Tokens)/r.Seconds, r.Failures)
		good = good * 9 / 10
	}
	return nil, fmt.Errorf("no number of streams was held")
}

// hold relays n streams in the window w.
func (m *measurement) hold(w *metered, n int) (*load.Result, error) {
	m.Streams = n
	r := m.relay(w)
	return r, w.err
}

// holds reports whether every token has arrived in time. A stream may lack one token at each end of
// the window.
func (m *measurement) holds(r *load.Result, n int) bool {
	return r.Failed() == 0 && float64(r.Tokens) >= float64(n)*(heldShare*m.Rate*r.Seconds-1)
}
