package predict

import "math/bits"

// width is the number of features of a fit.
const width = 4

// fit is a least-squares fit of y = coef·x over recent observations, without negative coefficients.
// The prior counts as some observations of typical size, or of the size of ref, at first. So
// features that hardly vary keep it, and small observations say little about large ones.
// Observations of like size are a class. Only others of its class replace an observation quickly,
// so that many short prompts do not wipe out what long ones have taught.
type fit struct {
	n       int
	classes [classes]class
	prior   [width]float64
	ref     [width]float64
	coef    [width]float64
}

// class has the decayed sums of the observations of one class.
type class struct {
	n   int
	sum float64 // of the weights
	g   [width][width]float64
	h   [width]float64
}

const (
	classes   = 9
	fitMemory = 96   // observations of a class that count, half of all at first
	fitOthers = 1024 // observations in which a class without new ones is forgotten
	ridge     = 1.0  // observations that the prior counts as
	ridgeRef  = 0.1  // observations of the size of ref that the prior counts as
	ridgeFor  = 16   // observations after which the prior counts half as much
	sweeps    = 8    // of the coordinate descent, which begins at the last coefficients
)

func newFit(prior, ref [width]float64) fit { return fit{prior: prior, ref: ref, coef: prior} }

// classOf returns the class of an observation. x[1] is its size, tokens of a prompt or requests in
// a batch. A class spans a factor of four.
func classOf(x [width]float64) int {
	return min(bits.Len64(uint64(min(max(x[1], 0), 1<<40)))/2, classes-1)
}

// expect returns what the coefficients give for x, and at least a thousandth of what the prior
// gives. Coefficients may be 0.
func (f *fit) expect(x [width]float64) float64 {
	return max(dot(f.coef, x), dot(f.prior, x)/1000)
}

// seen returns the numbers of observations of any class, and of the class of x.
func (f *fit) seen(x [width]float64) (all, alike int) { return f.n, f.classes[classOf(x)].n }

// observe adds an observation. expected is what expect gives for it. An error counts relative to
// expected, so short times matter as much as long ones. One that is late beyond the clip, because
// the first ones are not clipped, counts no more than at the clip.
func (f *fit) observe(x [width]float64, y, expected, weight float64) {
	f.n++
	at := classOf(x)
	for i := range f.classes {
		if i != at && f.classes[i].n > 0 {
			f.classes[i].forget(1 - 1.0/fitOthers)
		}
	}
	scale := 1 / max(expected, y/clipUp)
	y *= scale
	for i := range x {
		x[i] *= scale
	}
	c := &f.classes[at]
	c.n++
	c.forget(1 - 1/min(max(float64(c.n)/2, 8), fitMemory))
	c.sum += weight
	for i := range x {
		for j := range x {
			c.g[i][j] += weight * x[i] * x[j]
		}
		c.h[i] += weight * x[i] * y
	}
}

// forget multiplies all weights by keep.
func (c *class) forget(keep float64) {
	c.sum *= keep
	for i := range c.g {
		c.h[i] *= keep
		for j := range c.g[i] {
			c.g[i][j] *= keep
		}
	}
}

// solve computes the coefficients by coordinate descent.
func (f *fit) solve() {
	var all class
	for at := range f.classes {
		c := &f.classes[at]
		all.sum += c.sum
		for i := range c.g {
			all.h[i] += c.h[i]
			for j := range c.g[i] {
				all.g[i][j] += c.g[i][j]
			}
		}
	}
	if all.sum == 0 {
		return
	}
	scale, unsure := 1/f.expect(f.ref), ridgeFor/float64(ridgeFor+f.n)
	for range sweeps {
		for i := range f.coef {
			pull := unsure * max(ridge*all.g[i][i]/all.sum, ridgeRef*f.ref[i]*scale*f.ref[i]*scale)
			top, bottom := all.h[i]+pull*f.prior[i], all.g[i][i]+pull
			if bottom == 0 {
				continue
			}
			for j := range f.coef {
				if j != i {
					top -= all.g[i][j] * f.coef[j]
				}
			}
			f.coef[i] = max(top/bottom, 0)
		}
	}
}

func dot(a, b [width]float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}
