package router

import (
	"log/slog"
	"syscall"
)

// Descriptors that client connections leave to the admin port, checks, logs, etcd and the parts of
// the process itself: a quarter of the limit, within these bounds.
const (
	filesKeptMin = 24
	filesKeptMax = 256
)

// connectionsWithin is how many client connections there may be where the process may open limit
// files: each may need a second one, to a node. It is wanted at most, and at least 1.
func connectionsWithin(limit uint64, wanted int) int {
	kept := min(max(limit/4, filesKeptMin), filesKeptMax)
	if limit <= kept {
		return 1
	}
	return max(min(wanted, int(min((limit-kept)/2, 1<<30))), 1)
}

// maxConnections is limits.max_connections, or less where this process may not open the files for
// as many. The Go runtime has raised the limit to the hard one.
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
