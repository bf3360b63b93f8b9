package predict

import (
	"math"
	"sync"
)

// Lengths tells how long answers become, in tokens. Lengths keeps a distribution for each class of
// requests: for all requests of a model, for those with equal beginnings and bounds, and for a
// session. The zero value has seen no answer. Lengths is safe for concurrent use.
type Lengths struct {
	mu  sync.Mutex
	all []lengths // by the remainder of the class's key; empty before the first answer
}

// classes bounds the classes. A new class takes the place of the old one with the same remainder.
const classes = 1 << 14

// lengths is a lognormal distribution, of the last answers by decaying weight.
type lengths struct {
	key            uint64
	n              int
	mean, variance float64 // of the logarithm of tokens
	longest        float64 // of all answers, in tokens
}

// Class names the distributions that a request belongs to.
type Class struct {
	Model   uint64
	Caller  uint64 // of requests with an equal beginning; 0: none
	Session uint64 // 0: none
	Bound   int64  // max_tokens of the request; 0: none
}

// keys returns the classes of a request, the widest first. Requests with bounds of the same order
// of magnitude are alike. Equal keys of different classes only make a forecast worse.
func (c *Class) keys() [4]uint64 {
	bound := uint64(0)
	if c.Bound > 0 {
		bound = uint64(math.Ilogb(float64(c.Bound))) + 1
	}
	model := mix(c.Model ^ bound)
	keys := [4]uint64{mix(c.Model), model}
	if c.Bound == 0 {
		keys[1] = 0
	}
	if c.Caller != 0 {
		keys[2] = mix(model ^ c.Caller)
	}
	if c.Session != 0 {
		keys[3] = mix(model ^ ^c.Session)
	}
	return keys
}

func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

const (
	// usual is the expected length of an answer before any was seen, in tokens.
	usual = 256
	// trust is the number of answers at which a class counts as much as the wider one.
	trust = 4
	// lengthGain is the weight of an answer in its class, once there are some.
	lengthGain = 1.0 / 32
)

// Expected returns the expected length of the answer. It is not above the longest one seen, because
// the mean of a lognormal distribution is, where short and long answers alternate.
func (l *Lengths) Expected(c *Class) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	mean, variance, longest := math.Log(usual), 0.0, float64(usual)
	if c.Bound > 0 {
		mean = min(mean, math.Log(float64(c.Bound)))
	}
	for _, key := range c.keys() {
		if d := l.of(key); d != nil && d.key == key {
			share := float64(d.n) / float64(d.n+trust)
			mean += (d.mean - mean) * share
			variance += (d.variance - variance) * share
			longest = max(longest, d.longest)
		}
	}
	tokens := min(math.Exp(mean+variance/2), longest)
	if c.Bound > 0 {
		tokens = min(tokens, float64(c.Bound))
	}
	return tokens
}

// Learn takes in the length of an answer.
func (l *Lengths) Learn(c *Class, tokens int64) {
	if tokens <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = make([]lengths, classes)
	}
	log := math.Log(float64(tokens))
	for _, key := range c.keys() {
		if d := l.of(key); d != nil {
			if d.key != key {
				*d = lengths{key: key}
			}
			d.observe(log)
			d.longest = max(d.longest, float64(tokens))
		}
	}
}

// of returns the place of a class, or nil if there is no class or no place. The caller holds the
// lock.
func (l *Lengths) of(key uint64) *lengths {
	if key == 0 || l.all == nil {
		return nil
	}
	return &l.all[key%classes]
}

func (d *lengths) observe(log float64) {
	d.n++
	gain := max(lengthGain, 1/float64(d.n))
	off := log - d.mean
	d.mean += gain * off
	d.variance = (1 - gain) * (d.variance + gain*off*off)
}
