//go:build !linux

package disturb

import (
	"context"
	"errors"
)

// Run fails on this system.
func Run(context.Context, Config) (*Report, error) {
	return nil, errors.New("disturb: network namespaces and control groups are Linux's")
}
