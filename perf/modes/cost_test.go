package modes

import "math"

// costs returns the cost of every worker and the index of the picked one.
func costs(s *situation) (costs []float64, pick int) {
	set, base := settingsOf(s), floor(s)
	for i := range s.Workers {
		costs = append(costs, set.cost(s, &s.Workers[i], base))
		if costs[i] < costs[pick] {
			pick = i
		}
	}
	return costs, pick
}

// settings holds the configuration with the request's overrides.
type settings struct {
	credit, decay, scale, requests, host, disk, shared float64
	trackPrefill, assumeReuse, trackBlocks             bool
}

// first returns the first value that is set, or else the fallback.
func first[T any](fallback T, values ...*T) T {
	for _, v := range values {
		if v != nil {
			return *v
		}
	}
	return fallback
}

func settingsOf(s *situation) settings {
	c, o := s.Config, s.Override
	if o == nil {
		o = &override{}
	}
	var nothing float64
	if w := c.OverlapWeight; w != nil {
		if c.PrefillScale = w; *w == 0 {
			c.Credit = &nothing
		}
	}
	scale, credit := o.PrefillScale, o.Credit
	if w := o.OverlapWeight; w != nil {
		if scale = w; *w == 0 {
			credit = &nothing
		}
	}
	shared := 0.0
	if c.SharedType == "hicache" {
		shared = 0.5
	}
	return settings{
		credit: first(1, credit, c.Credit), decay: first(0, c.Decay), scale: first(1, scale, c.PrefillScale),
		requests: first(0, c.RequestWeight), host: first(0.75, c.HostWeight), disk: first(0.25, c.DiskWeight),
		shared:       first(shared, o.SharedMultiplier, c.SharedMultiplier),
		trackPrefill: first(true, o.TrackPrefill, c.TrackPrefill),
		assumeReuse:  first(true, o.AssumeReuse, c.AssumeReuse),
		trackBlocks:  first(true, c.TrackBlocks),
	}
}

// floor returns the fewest tokens that wait for prefill at a worker. An unknown load counts as 0.
func floor(s *situation) int {
	least := math.MaxInt
	for _, w := range s.Workers {
		least = min(least, first(load{}, w.Load).PrefillTokens)
	}
	return least
}

func (set *settings) cost(s *situation, w *worker, floor int) float64 {
	size, tokens := float64(s.BlockSize), float64(s.Tokens)
	now := first(load{}, w.Load)

	dev, host := float64(w.Device), float64(max(w.Host-w.Device, 0))
	disk := float64(max(w.Disk-max(w.Host, w.Device), 0))
	cached := math.Round((dev + set.host*host + set.disk*disk) * size)

	raw, decay := 0.0, 1.0
	if set.trackPrefill {
		raw = tokens / size
		if w.Load != nil {
			raw = (float64(now.PrefillTokens) + max(0, tokens-cached) + cached) / size
		}
		excess := float64(now.PrefillTokens-floor) / size
		decay = 1 / (1 + set.decay*excess/max(1, math.Ceil(tokens/size)))
	}
	credit := set.credit*decay*dev + set.host*host + set.disk*disk + set.shared*float64(s.sharedBeyond(w))
	requests := set.requests * float64(now.Requests)
	decode := set.decode(s, w)
	cost := set.scale*max(0, raw-credit) + decode + requests
	if s.Leg == "decode" && !set.trackPrefill && set.credit > 0 {
		cost = max(0, decode-credit) + requests
	}
	return cost * s.factor(w)
}

// decode returns the active blocks after the request has come.
func (set *settings) decode(s *situation, w *worker) float64 {
	if w.Load == nil || !set.trackBlocks {
		return 0
	}
	more := s.complete()
	if set.assumeReuse {
		more -= w.Load.SharedActive
	}
	return math.Round(w.Load.ActiveBlocks) + float64(more)
}
