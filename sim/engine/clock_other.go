//go:build !linux

package engine

import "time"

var loaded = time.Now()

// threadTime returns the elapsed time, because only Linux reports a thread's CPU time.
func threadTime() time.Duration { return time.Since(loaded) }
