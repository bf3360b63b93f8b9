//go:build race

// Package race tells tests whether the race detector runs. It lets a sync.Pool forget what it was
// given, so that what does not allocate otherwise does then.
package race

// Enabled says that the race detector runs.
const Enabled = true
