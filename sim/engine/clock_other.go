//go:build !linux

package engine

import "time"

var loaded = time.Now()

// threadTime is the time that has passed: what a thread has used of it is told on Linux only.
func threadTime() time.Duration { return time.Since(loaded) }
