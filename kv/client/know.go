//go:build linux

package client

import (
	"context"
	"fmt"
	"slices"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/frame"
)

// maxKnown is how many namespaces a Client remembers for daemons that are started anew.
const maxKnown = 1024

// Know names a namespace to the daemon, and to those that come after it, so that Get finds blocks
// that only other hosts have: an address holds no more than a digest of it. Once is enough, and not
// even that for what this daemon's clients have put. block.ErrNamespace: it is not a canonical
// namespace of blocks.
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
