package router

import (
	"log/slog"
	"syscall"
)

// A quarter of the process's file limit is reserved for the admin port, checks, logs, etcd and the
// process itself. These constants bound that reserve.
const (
	filesKeptMin = 24
	filesKeptMax = 256
)

// connectionsWithin returns the number of client connections for a process that may open limit
// files. Each connection may need a second file for a node. The result is at most wanted and at
// least 1.
func connectionsWithin(limit uint64, wanted int) int {
	kept := min(max(limit/4, filesKeptMin), filesKeptMax)
	if limit <= kept {
		return 1
	}
	return max(min(wanted, int(min((limit-kept)/2, 1<<30))), 1)
}

// maxConnections returns limits.max_connections, or less if the process may not open enough files.
// The Go runtime has raised the soft limit to the hard limit.
func maxConnections(wanted int, log *slog.Logger) int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return wanted
	}
	within := connectionsWithin(l.Cur, wanted)
	if within < wanted {
		log.Warn("fewer client connections are taken than limits.max_connections says: too few open files are "+
			"allowed; raise the limit (ulimit -n, LimitNOFILE= in a systemd unit)",
			"limits.max_connections", wanted, "taken", within, "open_files_limit", l.Cur, "open_files_needed",
			2*wanted+filesKeptMax)
	}
	return within
}
