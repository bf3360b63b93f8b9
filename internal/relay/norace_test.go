//go:build !race

package relay

// thorough: see race_test.go.
const thorough = false
