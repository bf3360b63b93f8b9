//go:build !race

package transport

const underRace = false
