//go:build !linux

package agent

func releaseStart() {}
