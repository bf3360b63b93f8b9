//go:build !linux

package power

import "errors"

func openIPMI(string) (port, error) {
	return nil, errors.New("IPMI devices are read on Linux only")
}
