package power

import "time"

// window is the time that the mean covers.
const window = 30 * time.Second

// series holds the last readings of one component. Times are monotonic and begin with the meter, so
// a step of the wall clock has no effect. The 128 readings are more than the window holds at
// minInterval. The oldest reading is dropped if the window has more readings. The mean then covers
// less time.
type series struct {
	at    [128]time.Duration
	watts [128]float64
	next  int // index of the next reading
	n     int
}

// add appends a reading. A reading with the time of the last reading replaces that reading. An
// older reading is ignored.
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

// mean returns the mean of the window before now. Each reading is weighted with the time until the
// next one, but at most with hold. The time after hold is not counted, because nothing is known of
// it. The mean is unknown if the newest reading is older than hold.
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
