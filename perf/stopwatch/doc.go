// Package stopwatch measures the times of an engine's streams at the client, with little other
// delay. The package's reading thread runs as soon as bytes arrive.
package stopwatch
