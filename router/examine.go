package router

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/internal/rights"
	"github.com/cognitora/dataplane/internal/takeover"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
)

// Examine checks the files that c names, as a start would. Examine reports each problem with its
// field and the fix. Examine only reads; Examine binds and writes nothing.
func (c *Config) Examine() error {
	errs := []error{
		c.examinePolicy(),
		c.examineAuth(),
		c.RateLimit.examine(),
		pki.Files{CA: c.TLS.ClientCA, Cert: c.TLS.Cert, Key: c.TLS.Key}.Examine("tls.client_ca", "tls.cert", "tls.key"),
		pki.Files{CA: c.Upstream.CA, Cert: c.Upstream.Cert, Key: c.Upstream.Key}.Examine("upstream_tls.ca",
			"upstream_tls.cert", "upstream_tls.key"),
	}
	for _, l := range [][2]string{{"router.listen", c.Router.Listen}, {"router.admin", c.Router.Admin}} {
		if listen.Check(l[1]) == nil { // otherwise Validate reports it
			errs = append(errs, field(l[0], listen.Examine(l[1])))
		}
	}
	errs = append(errs, c.Traces.examine(), c.Usage.examine())
	if t := &c.Takeover; !t.off() && !t.byDefault {
		errs = append(errs, field("takeover.socket", takeover.Examine(t.Socket)))
	}
	for i, text := range c.Router.Backends {
		if b, err := fleet.ParseBackend(text); err == nil { // Validate reports problems with the text
			errs = append(errs, b.Examine(fmt.Sprintf("router.backends[%d]: option ", i)))
		}
	}
	_, err := c.loadTokens(slog.New(slog.DiscardHandler))
	errs = append(errs, err)
	for i, table := range c.Backends {
		errs = append(errs, table.backend().Examine(fmt.Sprintf("backend[%d].", i)))
	}
	if path := c.Log.Access; path != "" && path != "-" {
		if err := rights.Appendable(path); err != nil {
			errs = append(errs, accessLogProblem(err))
		}
	}
	return errors.Join(errs...)
}

// accessLogProblem adds a hint to the error of an access log that cannot be opened: where to write
// one.
func accessLogProblem(err error) error {
	return fmt.Errorf("log.access: %w; name a file in a directory that the router can write to (--access-log FILE), "+
		"or - for standard output", err)
}

// policyFileProblem adds a hint to the error of a policy file that cannot be read.
func policyFileProblem(err error) error {
	return fmt.Errorf("router.policy_file: %w; name a JSON policy document (--policy-file FILE), or leave it out", err)
}

// field adds the name of a setting to err. field returns nil for nil.
func field(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

func (c *Config) examinePolicy() error {
	name := c.Router.PolicyFile
	if name == "" {
		return nil
	}
	if err := rights.Readable(name); err != nil {
		return policyFileProblem(err)
	}
	doc, err := rights.ReadFile(name)
	if err != nil {
		return policyFileProblem(err)
	}
	if _, err := policy.Parse(doc); err != nil {
		return fmt.Errorf("router.policy_file: %s: %w", name, err)
	}
	return nil
}
