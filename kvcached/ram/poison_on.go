//go:build kvdebug || race

package ram

// poison overwrites freed memory, so that a later use of it shows.
func poison(p []byte) {
	p[0] = 0xDB
	for n := 1; n < len(p); n *= 2 {
		copy(p[n:], p[:n])
	}
}

// Poisoned tells whether freed memory is overwritten, as it is in builds with the tag kvdebug or
// the race detector.
const Poisoned = true
