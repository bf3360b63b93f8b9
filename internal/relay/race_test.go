//go:build race

package relay

// thorough makes long tests run in full: where the race detector is, which is
// where time does not matter.
const thorough = true
