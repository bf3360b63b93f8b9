package kvcached

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another process uses the data directory.
var ErrLocked = errors.New("kvcached: the data directory is in use")

// lockFile is locked while a daemon or an offline verify uses the directory.
const lockFile = "LOCK"

// LockDir locks dir and makes it (0700) if it does not exist. Other processes cannot use it until
// the result is closed, or the process ends. An ErrLocked names the process that holds the lock.
func LockDir(dir string) (io.Closer, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("kvcached.data: %w; name a directory that can be made with --data DIR", err)
	}
	name := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("kvcached.data: %w; name a directory that can be written to with --data DIR", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("kvcached.data: lock of %s: %w", name, err)
		}
		return nil, fmt.Errorf("%w: %s by %s; stop that one, or name another directory with --data DIR", ErrLocked, dir,
			holder(f))
	}
	// The process id is only for people: a full disk does not keep the daemon from its directory.
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(fmt.Sprint(os.Getpid())), 0)
	}
	return f, nil
}

// makeRunDir makes the default directory of the sockets if they go there and it is missing. Their
// group may enter it.
func (d *Daemon) makeRunDir() error {
	sock, _ := d.config.Sockets()
	if d.config.Daemon.Sock != "" || filepath.Dir(sock) != runDir {
		return nil
	}
	err := os.Mkdir(runDir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return d.tellGroup(runDir)
	}
	if err == nil && d.config.Daemon.Group >= 0 {
		err = os.Chown(runDir, -1, d.config.Daemon.Group)
	}
	if err == nil {
		err = os.Chmod(runDir, 0o750)
	}
	if err != nil {
		return fmt.Errorf("kvcached.sock: %w; give another path with --sock", err)
	}
	return nil
}

// tellGroup warns if the group of the sockets cannot enter a directory.
func (d *Daemon) tellGroup(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("kvcached.sock: %s: %w", dir, err)
	}
	if group := d.config.Daemon.Group; group >= 0 && !enters(&st, group) {
		d.warnGroup(dir, &st)
	}
	return nil
}

// enters says whether the members of a group may enter a directory.
func enters(dir *unix.Stat_t, group int) bool {
	if int(dir.Gid) == group {
		return dir.Mode&0o010 != 0
	}
	return dir.Mode&0o001 != 0
}

func (d *Daemon) warnGroup(dir string, st *unix.Stat_t) {
	group := d.config.Daemon.Group
	d.log.Warn("members of the sockets' group may be unable to enter the sockets' directory, which stays as it is",
		"dir", dir, "mode", fmt.Sprintf("%04o", st.Mode&0o7777), "dir_group", st.Gid, "socket_group", group,
		"try", fmt.Sprintf("chgrp %d %s && chmod g+x %s, or put the sockets elsewhere", group, dir, dir))
}

// letGroupIn lets a group enter the data directory if one of the sockets is there and no group has
// a right to the directory. The group cannot list it. letGroupIn leaves a directory as it is that a
// group has a right to, and warns if the group of the sockets cannot enter.
func (d *Daemon) letGroupIn() error {
	c := d.config
	dir, group := c.Daemon.Data, c.Daemon.Group
	if group < 0 || !slices.ContainsFunc(c.unixSockets(), c.inData) {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("kvcached.data: %s: %w", dir, err)
	}
	if enters(&st, group) {
		return nil
	}
	if st.Mode&0o070 != 0 {
		d.warnGroup(dir, &st)
		return nil
	}
	err := os.Chown(dir, -1, group)
	if err == nil {
		err = unix.Chmod(dir, st.Mode&0o7777|0o010)
	}
	if err != nil {
		return fmt.Errorf("kvcached.socket_group: %w; name a group that the daemon's user is in, or sockets outside of %s", err,
			dir)
	}
	d.log.Info("the group of the sockets may enter the data directory now", "dir", dir, "socket_group", group,
		"group_before", st.Gid)
	return nil
}

// unixSockets returns the paths of all Unix sockets for clients.
func (c *Config) unixSockets() []string {
	sock, lease := c.Sockets()
	paths := []string{sock, lease}
	for _, at := range []string{c.RESP.Listen, c.S3.Listen, c.GRPC.Listen} {
		if path, ok := strings.CutPrefix(at, "unix://"); ok {
			paths = append(paths, filepath.Clean(path))
		}
	}
	return paths
}

// holder names the process that has locked f.
func holder(f *os.File) string {
	id := make([]byte, 32)
	if n, _ := f.ReadAt(id, 0); n > 0 {
		return "process " + string(id[:n])
	}
	return "another process"
}

// adviseLock says that a process uses the directory. adviseLock creates nothing.
func adviseLock(dir string) []string {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if err != nil {
		return nil
	}
	defer f.Close() // unlocks it, too
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	}
	return []string{fmt.Sprintf("kvcached.data: %s is in use by %s; another daemon starts there only after that one ends",
		dir, holder(f))}
}
