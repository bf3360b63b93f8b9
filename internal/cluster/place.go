package cluster

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// maxPlaceBytes is the longest address of a service.
const maxPlaceBytes = 512

// CheckPlace accepts the address of a service, host:port or unix:///path, or an empty one. Errors
// name the field.
func CheckPlace(field, at string) error {
	if path, ok := strings.CutPrefix(at, "unix://"); ok && len(at) <= maxPlaceBytes {
		if len(path) < 2 || path[0] != '/' {
			return fmt.Errorf("%s %q is neither host:port nor unix:///path", field, at)
		}
		return nil
	}
	return checkHostPort(field, at)
}

// checkHostPort accepts host:port, or an empty text.
func checkHostPort(field, at string) error {
	if at == "" {
		return nil
	}
	if len(at) > maxPlaceBytes {
		return fmt.Errorf("%s has %d bytes; at most %d are read", field, len(at), maxPlaceBytes)
	}
	host, port, err := net.SplitHostPort(at)
	if err != nil || host == "" {
		return fmt.Errorf("%s %q is not host:port, such as 10.0.0.7:7072", field, at)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%s %q: %q is not a port, 1 to 65535", field, at, port)
	}
	return nil
}
