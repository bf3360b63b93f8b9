//go:build !kvdebug && !race

package ram

func poison([]byte) {}

// Poisoned tells whether freed memory is overwritten, as it is in builds with the tag kvdebug or
// the race detector.
const Poisoned = false
