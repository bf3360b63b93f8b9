// Package compare measures routers side by side: the same requests to the same instant
// engines through each of them, in turn, in one run on one machine.
//
// Who is measured stands in contestants.toml, what in scenarios.toml. A contestant that is not
// installed is reported as missing. CPU time is what the contestant's own processes used, from
// /proc, divided by the work done meanwhile; every figure is the median of repetitions in which
// the contestants take turns, and every ratio is taken between two measurements of one turn.
package compare
