package power

import "time"

// window is what the mean is taken over.
const window = 30 * time.Second

// series is the last readings of one component. Times are counted on the
// monotonic clock since the meter's start, so a step of the wall clock means
// nothing. 128 readings are more than the window holds at minInterval; beyond
// that the oldest goes, and the mean covers less.
type series struct {
	at    [128]time.Duration
	watts [128]float64
	next  int // where the next one goes
	n     int
}

// add appends a reading. One that is no newer than the last replaces it where
// the times are equal, and is ignored where it is older.
func (s *series) add(at time.Duration, watts float64) {
	if s.n > 0 {
		last := (s.next + len(s.at) - 1) % len(s.at)
		if at < s.at[last] {
			return
		}
		if at == s.at[last] {
			s.watts[last] = watts
			return
		}
	}
	s.at[s.next], s.watts[s.next] = at, watts
	s.next = (s.next + 1) % len(s.at)
	s.n = min(s.n+1, len(s.at))
}

// mean is the mean of the window before now, each reading weighted with the
// time until the next one, though with hold at most: after that nothing is known
// of the time, which then counts neither as zero nor as the old value. It is
// unknown where the newest reading is older than hold.
func (s *series) mean(now, hold time.Duration) (watts float64, known bool) {
	if s.n == 0 {
		return 0, false
	}
	last := (s.next + len(s.at) - 1) % len(s.at)
	if now-s.at[last] > hold {
		return 0, false
	}
	var sum, covered float64
	until := now
	for i, k := 0, last; i < s.n; i, k = i+1, (k+len(s.at)-1)%len(s.at) {
		from, to := max(s.at[k], now-window), min(until, s.at[k]+hold)
		if to > from {
			sum += s.watts[k] * (to - from).Seconds()
			covered += (to - from).Seconds()
		}
		if until = s.at[k]; until <= now-window {
			break
		}
	}
	if covered == 0 {
		return s.watts[last], true
	}
	return sum / covered, true
}
