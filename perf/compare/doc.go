// Package compare measures routers side by side. Each router in turn gets the same requests to the
// same instant engines, in one run on one machine.
//
// contestants.toml lists the routers, and scenarios.toml the measurements. A contestant that is not
// installed is reported as missing. CPU time is the time of the contestant's own processes, from
// /proc, divided by the work done meanwhile. Every figure is the median of repetitions in which the
// contestants take turns. Every ratio is between two measurements of one turn.
package compare
