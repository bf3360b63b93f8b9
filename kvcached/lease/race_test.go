//go:build linux && race

package lease_test

const (
	raceEnabled = true
	idleClients = 500
)
