package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/internal/pki"
)

func newPKI(a *app) *cobra.Command {
	var o pki.Options
	var roles []string
	var dir string
	c := &cobra.Command{
		Use:   "bootstrap",
		Short: "Make a private CA and one certificate per role",
		Long: "Writes ca.crt, ca.key and <role>.crt, <role>.key. A CA that is already in the directory signs the new\n" +
			"certificates and is never replaced, so a second call for other hosts or roles extends a fleet.",
		Example: "  cgn-ctl pki bootstrap --dir pki --host gpu1.example,10.0.0.1",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			for _, r := range roles {
				o.Roles = append(o.Roles, pki.Role(r))
			}
			return a.bootstrap(dir, o)
		},
	}
	all := []string{string(pki.Router), string(pki.Agent), string(pki.Ctl), string(pki.Etcd)}
	c.Flags().StringVar(&dir, "dir", "pki", "directory to write to; made with mode 0700")
	c.Flags().StringSliceVar(&o.Hosts, "host", nil, "DNS names and addresses the certificates are for (default localhost, 127.0.0.1, ::1)")
	c.Flags().StringSliceVar(&roles, "role", all, "roles to make certificates for")
	c.Flags().DurationVar(&o.Lifetime, "lifetime", pki.DefaultLifetime, "how long the certificates are valid")
	c.Flags().BoolVar(&o.Force, "force", false, "replace certificates that are there; the CA is kept")
	return group("pki", "Make the fleet's certificates", c)
}

func (a *app) bootstrap(dir string, o pki.Options) error {
	err := pki.Bootstrap(dir, o)
	if errors.Is(err, pki.ErrExists) {
		return hinted{err, "give another --dir or --role, or replace it with --force"}
	}
	if err != nil {
		return err
	}
	type made struct {
		Role string `json:"role"`
		Cert string `json:"cert"`
		Key  string `json:"key"`
		CA   string `json:"ca"`
	}
	var rows []made
	for _, r := range o.Roles {
		f := pki.FilesIn(dir, r)
		rows = append(rows, made{string(r), f.Cert, f.Key, f.CA})
	}
	return a.show(rows, func(t *table) {
		t.row("ROLE", "CERTIFICATE", "KEY")
		for _, r := range rows {
			t.row(r.Role, r.Cert, r.Key)
		}
		t.line(fmt.Sprintf("\nsigned by %s, valid for %.0f days. Keep %s off the hosts.",
			filepath.Join(dir, "ca.crt"), o.Lifetime.Hours()/24, filepath.Join(dir, "ca.key")))
	})
}
