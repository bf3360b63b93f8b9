package agent

import (
	"fmt"

	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/logfile"
)

// Logs returns the log files of the settings, which need not exist.
func (c *Config) Logs() []logfile.Place { return []logfile.Place{c.Audit.File()} }

// ReopenLogs opens the audit log anew after a rotation. On an error the old file stays in use.
// ReopenLogs waits 2 s at most for a log whose write hangs.
func (a *Agent) ReopenLogs() error {
	if err := a.audit.Reopen(); err != nil {
		return fmt.Errorf("audit.log: %w", err)
	}
	logfile.Advise(a.log, a.config.Logs()...)
	return nil
}

// started records the agent's start, with its nodes.
func (a *Agent) started() {
	object := "version " + buildinfo.String()
	for _, n := range a.nodes {
		object += ", node " + n.id() + " at " + n.described.Address
	}
	a.audit.Act(audit.Act{Action: "start", Object: object, Outcome: "ok"})
}
