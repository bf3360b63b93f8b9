//go:build race

package kvevents

const underRace = true
