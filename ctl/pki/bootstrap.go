// Package pki has the commands that make a fleet's certificates.
package pki

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/pki"
)

// Command is cgn-ctl pki.
func Command(a *cli.App) *cobra.Command {
	var o pki.Options
	var roles []string
	var dir string
	c := &cobra.Command{
		Use:   "bootstrap",
		Short: "Make a private CA and one certificate per role",
		Long: "Writes ca.crt, ca.key and <role>.crt, <role>.key. A CA that is already in the directory signs " +
			"the new\n" +
			"certificates and is never replaced, so a second call for other roles extends a fleet. Other hosts get " +
			"theirs\nby join and sign.\n\n" +
			"Each program gets ca.crt and the pair of its role, and nothing else; ca.key stays with whoever makes " +
			"certificates.",
		Example: "  cgn-ctl pki bootstrap --dir pki --host gpu1.example,10.0.0.1",
		Args:    cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			o.Roles = rolesOf(roles)
			return bootstrap(a, dir, o)
		},
	}
	var all []string
	for _, r := range pki.Roles() {
		all = append(all, string(r))
	}
	c.Flags().StringVar(&dir, "dir", "pki", "directory to write to; made with mode 0700")
	c.Flags().StringSliceVar(&o.Hosts, "host", nil, "DNS names and addresses the certificates are for (default "+
		"localhost, 127.0.0.1, ::1)")
	c.Flags().StringSliceVar(&roles, "role", all, "roles to make certificates for")
	o.Lifetime = pki.DefaultLifetime
	c.Flags().Var((*cli.Days)(&o.Lifetime), "lifetime", "how long the certificates are valid: days like 397d, or 12h")
	c.Flags().BoolVar(&o.Force, "force", false, "replace certificates that are there; the CA is kept")
	return cli.Group("pki", "Make the fleet's certificates", c, newPKIJoin(a), newPKISign(a))
}

func bootstrap(a *cli.App, dir string, o pki.Options) error {
	err := pki.Bootstrap(dir, o)
	if errors.Is(err, pki.ErrExists) {
		return cli.WithHint(err, "another host gets its own by cgn-ctl pki join and sign; --force replaces "+
			"those that are there")
	}
	if err != nil {
		return err
	}
	rows := made(dir, o.Roles)
	return a.Show(rows, func(t *cli.Table) { writeMade(t, dir, rows, (*cli.Days)(&o.Lifetime).String()) })
}

// madeFiles lists the files of one role.
type madeFiles struct {
	Role string `json:"role"`
	Cert string `json:"cert"`
	Key  string `json:"key"`
	CA   string `json:"ca"`
}

// made returns the files of roles in a directory.
func made(dir string, roles []pki.Role) []madeFiles {
	rows := []madeFiles{}
	for _, r := range roles {
		f := pki.FilesIn(dir, r)
		rows = append(rows, madeFiles{string(r), f.Cert, f.Key, f.CA})
	}
	return rows
}

// settingsOf maps a role to the settings of its program for the files.
var settingsOf = map[string]string{
	string(pki.Router): "every cgn-router host: upstream_tls.ca, .cert and .key, with which it shows itself to " +
		"agents; etcd.* and tls.* likewise",
	string(pki.Agent): "every cgn-agent host: tls.ca, .cert and .key, with which it serves routers; etcd.* likewise",
	string(pki.KVCached): "every cgn-kvcached host: tls.ca, .cert and .key, with which cache daemons and routers know " +
		"it; etcd.* likewise",
	string(pki.Ctl):     "whoever runs cgn-ctl: --etcd-ca, --etcd-cert and --etcd-key; --admin-* and --tls-* likewise",
	string(pki.Etcd):    "every etcd host: --trusted-ca-file, --cert-file, --key-file and --client-cert-auth",
	string(pki.Monitor): "Prometheus: tls_config of its scrapes, for admin ports with admin_tls.client_ca",
}

func writeMade(t *cli.Table, dir string, rows []madeFiles, lifetime string) {
	t.Row("ROLE", "CERTIFICATE", "KEY", "VALID")
	for _, r := range rows {
		t.Row(r.Role, r.Cert, r.Key, lifetime)
	}
	ca, key := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	t.Line(fmt.Sprintf("\nThe CA that signed them is %s; its key, %s, signs further ones: keep it, and off the hosts.",
		ca, key))
	t.Line("\nCopy " + ca + " and a role's two files to")
	for _, r := range rows {
		t.Line("  " + r.Role + ": " + settingsOf[r.Role])
	}
	t.Line("With these settings daemons talk to each other by mutual TLS alone. cgn-ctl doctor checks a host.")
}
