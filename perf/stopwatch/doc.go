// Package stopwatch takes the times of an engine's streams as a client sees them, and as little
// else as can be, by a thread that runs as soon as something comes.
package stopwatch
