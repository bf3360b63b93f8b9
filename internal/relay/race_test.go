//go:build race

package relay

// thorough makes long tests run in full. thorough is set with the race detector, where time does
// not matter.
const thorough = true
