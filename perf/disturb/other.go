//go:build !linux

package disturb

import (
	"context"
	"errors"
)

// Run needs Linux.
func Run(context.Context, Config) (*Report, error) {
	return nil, errors.New("disturb: network namespaces and control groups are Linux's")
}
