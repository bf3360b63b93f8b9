package rights

import "golang.org/x/sys/unix"

// ofKernel tells whether dir is on a file system of the kernel, such as /proc or /sys, which takes
// no files whatever its modes say.
func ofKernel(dir string) bool {
	var at unix.Statfs_t
	if unix.Statfs(dir, &at) != nil {
		return false
	}
	switch int64(at.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC,
		unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.DEVPTS_SUPER_MAGIC:
		return true
	}
	return false
}
