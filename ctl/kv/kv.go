// Package kv has the commands for a host's KV cache.
package kv

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cache"
	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/kv/block"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// commands has the commands for one cache.
type commands struct {
	*cli.App
	cache.Daemon
}

// Command is cgn-ctl kv.
func Command(a *cli.App) *cobra.Command {
	k := &commands{App: a}
	c := cli.Group("kv", "Look into and change the KV cache of this host, or of another", newStats(k), newFollow(k),
		newPeers(k), newList(k), newGet(k), newPut(k), newRemove(k), newVerify(a), newTrace(a))
	k.Flags(c.PersistentFlags(), a.Getenv)
	return c
}

// respNamespace is the namespace of RESP clients' keys in their default database.
var respNamespace = block.Namespace{Space: "resp.0"}.String()

// blockFlags identify a block that is named by a client's key.
type blockFlags struct{ namespace string }

func (f *blockFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.namespace, "namespace", respNamespace,
		"namespace of a client's own key: key1;resp.DATABASE;TENANT or key1;s3.BUCKET;TENANT")
}

// find parses an address, cgn:NAMESPACE:LAYER:DIGEST. Another text is a client's own key.
func (f *blockFlags) find(text string) (namespace string, a block.Addr, err error) {
	if block.IsAddress([]byte(text)) {
		namespace, a, _, err = block.ParseText([]byte(text))
		return namespace, a, cli.Misused(err)
	}
	n, err := block.ParseNamespace(f.namespace)
	if err != nil {
		return "", a, cli.Misused(namespaceError(f.namespace, err))
	}
	return n.String(), block.OfKey(n.ID(), []byte(text)), nil
}

// otherNamespace is the hint for keys that were not found in a namespace.
const otherNamespace = "name another namespace with --namespace; kv ls shows in which each key is"

// missing adds to ErrNoBlock the namespace in which a client's own key was looked for.
func (f *blockFlags) missing(err error, text string) error {
	if !errors.Is(err, cache.ErrNoBlock) || block.IsAddress([]byte(text)) {
		return err
	}
	return cli.WithHint(fmt.Errorf("%w: key %q in namespace %s", err, text, f.namespace), otherNamespace)
}

// checkNamespace returns an error with a hint if text is neither empty nor a namespace.
func checkNamespace(text string) error {
	if _, err := block.ParseNamespace(text); err != nil && text != "" {
		return cli.Misused(namespaceError(text, err))
	}
	return nil
}

// namespaceError suggests the form of a namespace of keys for a text that was meant as one.
func namespaceError(text string, err error) error {
	space, tenant, _ := strings.Cut(strings.TrimPrefix(text, "key1;"), ";")
	meant := block.Namespace{Space: cmp.Or(space, "s3.BUCKET"), Tenant: tenant}.String()
	if strings.HasPrefix(text, "kv1;") || !strings.HasPrefix(space, "s3.") && !strings.HasPrefix(space, "resp.") {
		return cli.WithHint(fmt.Errorf("--namespace %q: %w", text, err),
			"clients' keys are in key1;resp.DATABASE;TENANT or key1;s3.BUCKET;TENANT, without a tenant such as '"+
				respNamespace+"'; kv stats lists what there is")
	}
	return cli.WithHint(fmt.Errorf("--namespace %q: not a namespace as it is written", text),
		"write --namespace '"+meant+"'")
}

// tierNames returns the names of a set of tiers.
func tierNames(tiers uint32) string {
	var names []string
	for _, t := range []struct {
		bit  pb.Tier
		name string
	}{{pb.Tier_TIER_DEVICE, "device"}, {pb.Tier_TIER_HOST, "ram"}, {pb.Tier_TIER_DISK, "ssd"},
		{pb.Tier_TIER_SHARED, "shared"}} {
		if tiers&uint32(t.bit) != 0 {
			names = append(names, t.name)
		}
	}
	return cell.Dash(strings.Join(names, "+"))
}
