//go:build !race

package relay

// thorough is explained in race_test.go.
const thorough = false
