package predict

// width is the number of features of a fit.
const width = 4

// fit is a least-squares fit of y = coef·x over recent observations, without negative coefficients.
// The prior counts as ridge observations of typical size, so that features which hardly vary keep
// it.
type fit struct {
	n     int
	sum   float64 // of the decayed weights
	g     [width][width]float64
	h     [width]float64
	prior [width]float64
	coef  [width]float64
}

const (
	fitMemory = 256 // observations that count, half of all at first
	ridge     = 1.0 // observations that the prior counts as
	sweeps    = 8   // of the coordinate descent, which begins at the last coefficients
)

func newFit(prior [width]float64) fit { return fit{prior: prior, coef: prior} }

// expect returns what the coefficients give for x, and at least a thousandth of what the prior
// gives. Coefficients may be 0.
func (f *fit) expect(x [width]float64) float64 {
	return max(dot(f.coef, x), dot(f.prior, x)/1000)
}

// observe adds an observation. expected is what expect gives for it. An error counts
// relative to expected, so short times matter as much as long ones.
func (f *fit) observe(x [width]float64, y, expected, weight float64) {
	scale := 1 / expected
	y *= scale
	for i := range x {
		x[i] *= scale
	}
	f.n++
	keep := 1 - 1/min(max(float64(f.n)/2, 8), fitMemory)
	f.sum = f.sum*keep + weight
	for i := range x {
		for j := range x {
			f.g[i][j] = f.g[i][j]*keep + weight*x[i]*x[j]
		}
		f.h[i] = f.h[i]*keep + weight*x[i]*y
	}
}

// solve computes the coefficients by coordinate descent.
func (f *fit) solve() {
	if f.sum == 0 {
		return
	}
	for range sweeps {
		for i := range f.coef {
			pull := ridge * f.g[i][i] / f.sum
			top, bottom := f.h[i]+pull*f.prior[i], f.g[i][i]+pull
			if bottom == 0 {
				continue
			}
			for j := range f.coef {
				if j != i {
					top -= f.g[i][j] * f.coef[j]
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
