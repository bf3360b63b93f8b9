//go:build linux

package client

import (
	"context"
	"fmt"
	"slices"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/frame"
)

// maxKnown bounds the namespaces that a Client remembers for restarted daemons.
const maxKnown = 1024

// Know tells the daemon, and each later one, a namespace. Get then finds blocks that only other
// hosts have, because an address holds only a digest of the namespace. One call is enough. Know is
// not needed for namespaces of blocks that this daemon's clients have put. Know returns
// block.ErrNamespace for a text that is no canonical namespace of blocks.
func (c *Client) Know(ctx context.Context, namespace string) error {
	if len(namespace) > frame.MaxBatch {
		return fmt.Errorf("%w: it has %d bytes", block.ErrNamespace, len(namespace))
	}
	s, err := c.pool.get(ctx)
	if err != nil {
		return err
	}
	err = s.know(ctx, namespace)
	c.done(s, err)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.known, namespace) && len(c.known) < maxKnown {
		c.known = append(c.known, namespace)
	}
	return nil
}

func (s *socket) know(ctx context.Context, namespace string) error {
	s.begin(frame.OpKnow, len(namespace))
	s.out = append(s.out, namespace...)
	h, _, err := s.exchange(ctx)
	if err == nil {
		err = errorOf(h.Status)
	}
	return err
}
