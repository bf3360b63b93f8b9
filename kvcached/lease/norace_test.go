//go:build linux && !race

package lease_test

const (
	raceEnabled = false
	idleClients = 10_000
)
