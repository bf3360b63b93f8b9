package pki

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/pki"
)

// maxBundle is the longest request or answer that is read, in bytes.
const maxBundle = 1 << 20

func newPKIJoin(a *cli.App) *cobra.Command {
	var o pki.Options
	var roles []string
	var dir, signed string
	c := &cobra.Command{
		Use:   "join",
		Short: "Make a new host's keys, and take in their certificates once they are signed",
		Long: "On the new host: join writes private keys, which stay there, and prints a request.\n" +
			"Where the CA is: sign turns the request into an answer.\n" +
			"On the new host again: join --signed takes the answer in.",
		Example: "  cgn-ctl pki join --dir pki --role agent --host gpu2.example > gpu2.request\n" +
			"  cgn-ctl pki sign --dir pki --role agent gpu2.request > gpu2.signed\n" +
			"  cgn-ctl pki join --dir pki --signed gpu2.signed",
		Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if signed != "" {
				return acceptSigned(a, c, dir, signed)
			}
			o.Roles = rolesOf(roles)
			bundle, err := pki.Request(dir, o)
			if errors.Is(err, pki.ErrExists) {
				return cli.WithHint(err, "cgn-ctl pki join --force asks for another certificate")
			}
			if err != nil {
				return err
			}
			_, err = a.Out.Write(bundle)
			return err
		},
	}
	c.Flags().StringVar(&dir, "dir", "pki", "directory for keys and certificates; made with mode 0700")
	c.Flags().StringSliceVar(&o.Hosts, "host", nil, "DNS names and addresses of the new host (default localhost, "+
		"127.0.0.1, ::1)")
	c.Flags().StringSliceVar(&roles, "role", []string{string(pki.Agent)}, "roles of the new host")
	c.Flags().StringVar(&signed, "signed", "", "answer of sign to take in; - is standard input")
	c.Flags().BoolVar(&o.Force, "force", false, "ask for certificates that are there already")
	return c
}

func newPKISign(a *cli.App) *cobra.Command {
	var o pki.Options
	var roles []string
	var dir string
	c := &cobra.Command{
		Use:     "sign REQUEST|-",
		Short:   "Sign the request of a host that joins",
		Example: "  cgn-ctl pki sign --dir pki --role agent gpu2.request > gpu2.signed",
		Args:    cli.OneArgument("a request (FILE or -)"),
		RunE: func(c *cobra.Command, args []string) error {
			bundle, err := cli.ReadInput(c, args[0], maxBundle)
			if err != nil {
				return err
			}
			o.Roles = rolesOf(roles)
			answer, grants, err := pki.Sign(dir, bundle, o)
			switch {
			case errors.Is(err, pki.ErrNotPEM):
				return cli.WithHint(fmt.Errorf("%s: %w", args[0], err),
					"give what cgn-ctl pki join has written on the new host")
			case errors.Is(err, pki.ErrRoleRefused):
				return cli.WithHint(fmt.Errorf("%s: %w", args[0], err),
					"allow it with --role, if that host may have it")
			case err != nil:
				return err
			}
			for _, g := range grants {
				fmt.Fprintf(a.Err, "signed: role %s of %s\n", g.Role, strings.Join(g.Hosts, ", "))
			}
			_, err = a.Out.Write(answer)
			return err
		},
	}
	c.Flags().StringVar(&dir, "dir", "pki", "directory with ca.crt and ca.key")
	c.Flags().StringSliceVar(&roles, "role", []string{string(pki.Agent)},
		"roles that the host may have; a request for any other is refused")
	o.Lifetime = pki.DefaultLifetime
	c.Flags().Var((*cli.Days)(&o.Lifetime), "lifetime", "how long the certificates are valid: days like 397d, or 12h")
	return c
}

func acceptSigned(a *cli.App, c *cobra.Command, dir, name string) error {
	answer, err := cli.ReadInput(c, name, maxBundle)
	if err != nil {
		return err
	}
	roles, err := pki.Accept(dir, answer)
	if errors.Is(err, pki.ErrNotPEM) {
		return cli.WithHint(fmt.Errorf("--signed %s: %w", name, err), "give what cgn-ctl pki sign has written")
	}
	if err != nil {
		return err
	}
	rows := made(dir, roles)
	return a.Show(rows, func(t *cli.Table) {
		t.Row("ROLE", "CERTIFICATE", "KEY", "CA")
		for _, r := range rows {
			t.Row(r.Role, r.Cert, r.Key, r.CA)
		}
	})
}

func rolesOf(names []string) (roles []pki.Role) {
	for _, n := range names {
		roles = append(roles, pki.Role(n))
	}
	return roles
}
