package kvcached

import (
	"fmt"
	"strings"

	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/logfile"
)

// Logs returns the log files of the settings, which need not exist.
func (c *Config) Logs() []logfile.Place { return []logfile.Place{c.Audit.File()} }

// openAudit opens the audit log.
func (d *Daemon) openAudit() (err error) {
	d.audit, err = d.config.Audit.Open("cgn-kvcached", d.metrics.audit, d.log)
	logfile.Advise(d.log, d.config.Logs()...)
	return err
}

// ReopenLogs opens the audit log anew after a rotation. On an error the old file stays in use.
// ReopenLogs waits 2 s at most for a log whose write hangs.
func (d *Daemon) ReopenLogs() error {
	if err := d.audit.Reopen(); err != nil {
		return fmt.Errorf("audit.log: %w", err)
	}
	logfile.Advise(d.log, d.config.Logs()...)
	return nil
}

// started records the daemon's start, with its servers.
func (d *Daemon) started() {
	object := []string{"version " + buildinfo.String()}
	for _, p := range d.parts {
		object = append(object, p.name+" at "+p.where)
	}
	d.audit.Act(audit.Act{Action: "start", Object: strings.Join(object, ", "), Outcome: "ok"})
}
