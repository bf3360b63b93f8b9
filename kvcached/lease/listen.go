//go:build linux

package lease

import (
	"fmt"
	"net"
	"path/filepath"

	"github.com/cognitora/dataplane/internal/listen"
)

// Listen binds the lease socket at path with mode 0660, and gives it to the group gid unless that
// is negative. A socket file on which nobody listens is replaced.
func Listen(path string, gid int) (*net.UnixListener, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	l, err := listen.OpenUnix(path, 0o660, gid)
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	return l, nil
}
