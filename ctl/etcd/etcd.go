// Package etcd connects to the etcd with a fleet's state, and explains why it does not answer.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/cluster"
)

// Default is the default address of etcd.
const Default = "127.0.0.1:2379"

// Environment variables for flags.
const (
	envEndpoints = "CGN_ETCD"
	envAsConfig  = "CGN_ETCD_ENDPOINTS" // the same setting, under the name in the configurations of router and agent
	envCA        = "CGN_ETCD_CA"
	envCert      = "CGN_ETCD_CERT"
	envKey       = "CGN_ETCD_KEY"
	envUser      = "CGN_ETCD_USERNAME"
	envPassword  = "CGN_ETCD_PASSWORD_FILE"
)

// Variables returns the names of all environment variables for flags.
func Variables() []string {
	return []string{envEndpoints, envAsConfig, envCA, envCert, envKey, envUser, envPassword}
}

// Store is the etcd with a fleet's state.
type Store struct {
	Without string // hint for somebody without etcd; empty: about commands that need none
	access  cluster.Access
}

// Flags defines the flags for etcd's address and the user's credentials.
func (s *Store) Flags(flags *pflag.FlagSet, getenv func(string) string) {
	def := strings.Split(cli.FirstSet(getenv, Default, envEndpoints, envAsConfig), ",")
	flags.StringSliceVar(&s.access.Endpoints, "etcd", def,
		"etcd client addresses (env "+envEndpoints+" or "+envAsConfig+", separated by commas)")
	file := func(into *string, flag, variable, help string) {
		flags.StringVar(into, flag, getenv(variable), help+" (env "+variable+")")
	}
	file(&s.access.CA, "etcd-ca", envCA, "PEM file that etcd's certificate is checked against; with https:// and "+
		"none, the system's")
	file(&s.access.Cert, "etcd-cert", envCert, "client certificate for etcd")
	file(&s.access.Key, "etcd-key", envKey, "key of the client certificate")
	file(&s.access.Username, "etcd-username", envUser, "etcd user")
	file(&s.access.PasswordFile, "etcd-password-file", envPassword, "file with the etcd user's password")
}

// With runs fn with a client, and explains the error if etcd does not answer.
func (s *Store) With(ctx context.Context, fn func(ctx context.Context, c *cluster.Client) error) error {
	cfg, err := s.access.Config()
	if err != nil {
		return cli.WithHint(err,
			"--etcd-ca, --etcd-cert, --etcd-key, --etcd-username and --etcd-password-file set these")
	}
	c, err := cluster.Dial(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	err = fn(ctx, c)
	if tls := (*cluster.HandshakeError)(nil); errors.As(c.Why(ctx, err), &tls) {
		return cli.WithHint(fmt.Errorf("TLS with etcd at %s fails: %w", tls.Endpoint, tls.Err),
			"are --etcd-ca, --etcd-cert and --etcd-key of its CA, and is it to be spoken to by TLS?")
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return cli.WithHint(fmt.Errorf("etcd does not answer at %s", strings.Join(s.access.Endpoints, ", ")),
			"is it running? Give its address with --etcd HOST:PORT or CGN_ETCD (cgn-ctl up prints the one it uses).\n  "+
				cmp.Or(s.Without, "A router with --backend alone has no etcd: cgn-ctl top shows its nodes, "+
					"cgn-ctl route explain how it picks."))
	}
	return err
}
