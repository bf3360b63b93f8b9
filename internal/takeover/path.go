package takeover

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/internal/rights"
)

// maxPath is the longest path of a Unix socket.
const maxPath = 107

// DefaultSocket returns the path at which a program that serves on listen offers its sockets by
// default: PROGRAM-ADDRESS.sock in a directory. The directory is systemd's $RUNTIME_DIRECTORY, or
// else PROGRAM in $XDG_RUNTIME_DIR, or else /run/PROGRAM for root and PROGRAM-UID in the temporary
// directory for others. The path is empty if nobody could find it again: for port 0, and if it
// would be too long.
func DefaultSocket(program, listen string, env func(string) string) string {
	if _, port, err := net.SplitHostPort(listen); err == nil && port == "0" {
		return ""
	}
	path := filepath.Join(directory(program, env), program+"-"+strings.ReplaceAll(strings.TrimPrefix(listen, "unix://"),
		"/", "-")+".sock")
	if len(path) > maxPath {
		return ""
	}
	return path
}

func directory(program string, env func(string) string) string {
	if first, _, _ := strings.Cut(env("RUNTIME_DIRECTORY"), ":"); first != "" {
		return first
	}
	if dir := env("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, program)
	}
	if os.Geteuid() == 0 {
		return "/run/" + program
	}
	return filepath.Join(os.TempDir(), program+"-"+strconv.Itoa(os.Geteuid()))
}

// prepare makes the directory of path if it is missing, for this user only. prepare refuses a
// directory that others can write to.
func prepare(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%w; %s", err, elsewhere)
	}
	return closed(dir)
}

const elsewhere = "name a socket in a directory that this user can write to"

// Examine returns an error if a program could not offer its sockets at path. Examine makes nothing.
func Examine(path string) error {
	dir := filepath.Dir(path)
	if err := rights.Makeable(dir); err != nil {
		return fmt.Errorf("%w; %s", err, elsewhere)
	}
	if err := closed(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// closed returns an error if other users may put a socket into dir.
func closed(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() || info.Mode()&(fs.ModePerm&0o022) != 0 {
		return fmt.Errorf("%s is no directory or others can write to it; chmod go-w it, or name a socket elsewhere",
			dir)
	}
	return nil
}
