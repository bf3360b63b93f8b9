package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/rights"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
)

const policyFileInterval = time.Second // between looks at the policy file

// defaultPolicy is the source of the policy while no document is known.
const defaultPolicy = "default: no document is known"

// policies are the fleet's policy in force, and its source. One goroutine at a time sets them.
type policies struct {
	current atomic.Pointer[policy.Policy]
	inForce atomic.Pointer[policy.InForce] // current, for people
	file    []byte                         // contents of the policy file when the router was made
}

// policySource returns where policy documents come from.
func (r *Router) policySource() string {
	switch name := r.config.Router.PolicyFile; {
	case name != "":
		return "file " + name
	case r.known.cluster != nil:
		return "etcd " + cluster.PolicyKey
	}
	return defaultPolicy
}

// startPolicy puts the first policy in force. The first policy is the file's policy, which must be
// valid, or the default until etcd has a policy.
func (r *Router) startPolicy() error {
	p, source := policy.Default(), defaultPolicy
	if name := r.config.Router.PolicyFile; name != "" {
		doc, err := rights.ReadFile(name)
		if err != nil {
			return policyFileProblem(err)
		}
		r.policies.file, source = doc, r.policySource()
		if p, err = policy.Parse(doc); err != nil {
			return fmt.Errorf("router.policy_file %s: %w", name, err)
		}
	}
	return r.putPolicy(p, source)
}

// putPolicy puts a policy in force. A mode of the command line replaces the policy's mode. The
// models' own policies keep their modes.
func (r *Router) putPolicy(p *policy.Policy, source string) error {
	in := &policy.InForce{Source: source}
	if r.config.Router.Mode != "" {
		mode, err := policy.ParseMode(r.config.Router.Mode)
		if err != nil {
			return fmt.Errorf("router.mode: %w", err)
		}
		if mode != p.Mode {
			in.ModeBy, in.DocumentMode = "router.mode", p.Mode.String()
		}
		own := *p
		own.Mode = mode
		p = &own
	}
	in.Mode, in.Settings = p.Mode.String(), p
	r.policies.current.Store(p)
	r.policies.inForce.Store(in)
	return nil
}

// refusePolicy notes why the newest document is not in force. The next policy in force has no such
// note.
func (r *Router) refusePolicy(reason string, unread bool) {
	in := *r.policies.inForce.Load()
	in.Refused = &policy.Refusal{Source: r.policySource(), Reason: reason, Unread: unread, At: time.Now()}
	r.policies.inForce.Store(&in)
}

// followPolicy puts every new policy document in force until ctx ends.
func (r *Router) followPolicy(ctx context.Context) error {
	switch {
	case r.config.Router.PolicyFile != "":
		return r.followPolicyFile(ctx)
	case r.known.cluster != nil:
		return ignoreCanceled(ctx, r.known.cluster.WatchPolicy(ctx, r.takePolicy))
	}
	<-ctx.Done()
	return nil
}

func ignoreCanceled(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (r *Router) followPolicyFile(ctx context.Context) error {
	name := r.config.Router.PolicyFile
	last, unread := r.policies.file, ""
	tick := time.NewTicker(policyFileInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		doc, err := rights.ReadFile(name)
		if err != nil {
			if err.Error() != unread {
				unread = err.Error()
				r.log.Warn("policy file not read, the policy in force stays", "file", name, "error", err)
				r.refusePolicy(whyUnread(err), true)
			}
			continue
		}
		again := unread != ""
		if unread = ""; again || !bytes.Equal(doc, last) {
			last = doc
			r.takePolicy(doc)
		}
	}
}

// whyUnread returns the reason why a file is not read.
func whyUnread(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "the file is gone"
	}
	return "the file cannot be read: " + err.Error()
}

// takePolicy puts a document in force. takePolicy refuses a bad document as a whole and keeps the
// present policy. Nil stands for the default.
func (r *Router) takePolicy(doc []byte) {
	p, source := policy.Default(), defaultPolicy
	if doc != nil {
		var err error
		source = r.policySource()
		if p, err = policy.Parse(doc); err != nil {
			r.log.Error("policy refused, the one in force stays", "source", source, "in_force",
				r.policies.inForce.Load().Source, "error", err)
			r.metrics.PolicyReloads.WithLabelValues("refused").Inc()
			r.refusePolicy(err.Error(), false)
			r.acted(source, "policy", "", err)
			return
		}
	}
	if err := r.putPolicy(p, source); err != nil {
		return // New has refused the mode
	}
	r.applyPolicy()
	if ignored := policy.Ignored(doc); len(ignored) > 0 {
		r.log.Warn("settings of the policy that have no effect", "settings", ignored)
	}
	r.metrics.PolicyReloads.WithLabelValues("applied").Inc()
	r.acted(source, "policy", "mode "+r.policies.inForce.Load().Mode, nil)
}

// applyPolicy applies the parts of the fleet's policy that are not about picking, and logs it.
func (r *Router) applyPolicy() {
	in := r.policies.inForce.Load()
	p, limit := in.Settings, r.config.Router.Admission.MaxQueue
	if p.MaxQueue > 0 {
		limit = p.MaxQueue
	}
	r.gate.SetMaxQueue(limit)
	r.busy.SetPolicy(p.Busy)
	attrs := []any{"source", in.Source, "mode", in.Mode}
	if note := in.Overridden(); note != "" {
		attrs = append(attrs, "note", note)
	}
	if idle := p.Idle(); len(idle) > 0 {
		attrs = append(attrs, "without_effect", idle)
	}
	r.log.Info("policy in force", append(attrs, in.Effective()...)...)
}

// policyProblem returns the problem of a policy that is not in force; nil if there is none.
func (r *Router) policyProblem() *fleet.Problem {
	refused := r.policies.inForce.Load().Refused
	if refused == nil {
		return nil
	}
	return &fleet.Problem{Subject: "policy, " + refused.Source, Reason: refused.String()}
}
