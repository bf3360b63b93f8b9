//go:build race

package transport

// underRace says that the race detector watches; quic-go's client races with itself in 0-RTT (its
// issue 4303).
const underRace = true
