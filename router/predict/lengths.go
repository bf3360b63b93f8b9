package predict

import (
	"math"
	"sync"
)

// Lengths tells how long answers become, in tokens. Lengths keeps a distribution for each class of
// requests: for all requests of a model, for those of a caller with equal bounds, and for a
// session. The zero value has seen no answer. Lengths is safe for concurrent use.
type Lengths struct {
	mu sync.Mutex
	// models holds the classes of whole models, by key.
	models map[uint64]*lengths
	// narrow holds the classes of callers and sessions, by the remainder of the key. It is empty
	// before the first answer. Callers and sessions are many, and most come once.
	narrow []lengths
}

const (
	// modelClasses bounds the classes of models. A new class beyond it takes another one's place.
	modelClasses = 1 << 12
	// narrowClasses bounds the classes of callers and sessions. A new class takes the place of the
	// old one with the same remainder.
	narrowClasses = 1 << 14
)

// lengths is a lognormal distribution, of the last answers by decaying weight.
type lengths struct {
	key            uint64
	n              int
	mean, variance float64 // of the logarithm of tokens
	longest        float64 // of all answers since the class has its place, in tokens
}

// Class names the distributions that a request belongs to.
type Class struct {
	Model   uint64
	Caller  uint64 // of requests with an equal system prompt or beginning; 0: none
	Session uint64 // 0: none
	Bound   int64  // max_tokens of the request; 0: none
}

// ofModel is the number of a request's classes that do not depend on its caller and session. They
// are the first of its keys.
const ofModel = 2

// keys returns the classes of a request, the widest first; 0: none. Requests with bounds of the
// same order of magnitude are alike. Equal keys of different classes only make a forecast worse.
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
	if c.Session != 0 { // inverted: a session is another class than a caller of equal hash
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
	// lengthUnknown is the expected length of an answer before any was seen, in tokens.
	lengthUnknown = 256
	// trust is the number of answers at which a class counts as much as the wider one.
	trust = 4
	// lengthGain is the weight of an answer in its class, once there are some.
	lengthGain = 1.0 / 32
	// longestAnswer is the most tokens that an engine is believed to have answered with.
	longestAnswer = 1 << 20
)

// Expected returns the expected length of the answer. It is at most the longest answer of the
// request's classes, or lengthUnknown if that is more: the mean of a lognormal distribution is
// above its longest answer where short and long ones alternate.
func (l *Lengths) Expected(c *Class) float64 {
	mean, variance, longest := math.Log(lengthUnknown), 0.0, float64(lengthUnknown)
	if c.Bound > 0 {
		mean = min(mean, math.Log(float64(c.Bound)))
	}
	keys := c.keys()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, key := range keys {
		if d := l.of(i, key); d != nil {
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

// Learn takes in the length of an answer. An engine's count above longestAnswer is an error, and
// teaches nothing.
func (l *Lengths) Learn(c *Class, tokens int64) {
	if tokens <= 0 || tokens > longestAnswer {
		return
	}
	log, keys := math.Log(float64(tokens)), c.keys()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, key := range keys {
		if key == 0 {
			continue
		}
		d := l.of(i, key)
		if d == nil {
			d = l.add(i, key)
		}
		d.observe(log)
		d.longest = max(d.longest, float64(tokens))
	}
}

// of returns the distribution of the class that is the i-th of a request, or nil. The caller holds
// the lock.
func (l *Lengths) of(i int, key uint64) *lengths {
	if i < ofModel {
		return l.models[key]
	}
	if l.narrow == nil || key == 0 {
		return nil
	}
	if d := &l.narrow[key%narrowClasses]; d.key == key {
		return d
	}
	return nil
}

// add gives a place to the class that is the i-th of a request. The caller holds the lock.
func (l *Lengths) add(i int, key uint64) *lengths {
	if i < ofModel {
		return l.addModel(key)
	}
	if l.narrow == nil {
		l.narrow = make([]lengths, narrowClasses)
	}
	d := &l.narrow[key%narrowClasses]
	*d = lengths{key: key}
	return d
}

func (l *Lengths) addModel(key uint64) *lengths {
	if l.models == nil {
		l.models = map[uint64]*lengths{}
	}
	if len(l.models) >= modelClasses {
		for other := range l.models {
			delete(l.models, other)
			break
		}
	}
	d := &lengths{key: key}
	l.models[key] = d
	return d
}

func (d *lengths) observe(log float64) {
	d.n++
	gain := max(lengthGain, 1/float64(d.n))
	off := log - d.mean
	d.mean += gain * off
	d.variance = (1 - gain) * (d.variance + gain*off*off)
}
