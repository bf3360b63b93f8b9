package router

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/cognitora/dataplane/router/policy"
)

const policyFileInterval = time.Second // between looks at the policy file

// startPolicy puts the first policy in force. The first policy is the file's policy, which must be
// valid, or the default until etcd has a policy.
func (r *Router) startPolicy() error {
	p := policy.Default()
	if name := r.config.Router.PolicyFile; name != "" {
		doc, err := os.ReadFile(name)
		if err != nil {
			return policyFileProblem(err)
		}
		r.policyDoc = doc
		if p, err = policy.Parse(doc); err != nil {
			return fmt.Errorf("router.policy_file %s: %w", name, err)
		}
	}
	p, err := r.withMode(p)
	r.policy.Store(p)
	return err
}

// withMode replaces the mode of the fleet's policy by the mode of the command line, if set. The
// models' own policies keep their modes.
func (r *Router) withMode(p *policy.Policy) (*policy.Policy, error) {
	if r.config.Router.Mode == "" {
		return p, nil
	}
	mode, err := policy.ParseMode(r.config.Router.Mode)
	if err != nil {
		return p, fmt.Errorf("router.mode: %w", err)
	}
	own := *p
	own.Mode = mode
	return &own, nil
}

// followPolicy puts every new policy document in force until ctx ends.
func (r *Router) followPolicy(ctx context.Context) error {
	switch {
	case r.config.Router.PolicyFile != "":
		return r.followPolicyFile(ctx)
	case r.cluster != nil:
		return ignoreCanceled(ctx, r.cluster.WatchPolicy(ctx, r.takePolicy))
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
	last, unread := r.policyDoc, ""
	tick := time.NewTicker(policyFileInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		doc, err := os.ReadFile(name)
		if err != nil {
			if err.Error() != unread {
				unread = err.Error()
				r.log.Warn("policy file not read, the policy in force stays", "file", name, "error", err)
			}
			continue
		}
		if unread = ""; !bytes.Equal(doc, last) {
			last = doc
			r.takePolicy(doc)
		}
	}
}

// takePolicy puts a document in force. takePolicy refuses a bad document as a whole and keeps the
// present policy. Nil stands for the default.
func (r *Router) takePolicy(doc []byte) {
	p := policy.Default()
	if doc != nil {
		var err error
		if p, err = policy.Parse(doc); err != nil {
			r.log.Error("policy refused, the one in force stays", "error", err)
			r.metrics.PolicyReloads.WithLabelValues("refused").Inc()
			return
		}
	}
	p, _ = r.withMode(p)
	r.policy.Store(p)
	r.applyPolicy(p)
	if ignored := policy.Ignored(doc); len(ignored) > 0 {
		r.log.Warn("settings of the policy that have no effect any more", "settings", ignored)
	}
	r.metrics.PolicyReloads.WithLabelValues("applied").Inc()
	w := &p.Score.Weights
	r.log.Info("policy in force", "mode", p.Mode.String(), "kv", w.KV, "load", w.Load, "power", w.Power, "capacity",
		w.Capacity)
}

// applyPolicy applies the parts of the fleet's policy that are not about picking.
func (r *Router) applyPolicy(p *policy.Policy) {
	limit := r.config.Router.Admission.MaxQueue
	if p.MaxQueue > 0 {
		limit = p.MaxQueue
	}
	r.gate.SetMaxQueue(limit)
	r.busy.SetPolicy(p.Busy)
	if p.TTFTSLOms > 0 {
		r.log.Info("the policy's ttft_slo_ms has no effect: nothing uses it", "ttft_slo_ms", p.TTFTSLOms)
	}
}
