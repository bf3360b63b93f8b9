//go:build !race

package router_test

const underRace = false
