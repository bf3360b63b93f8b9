//go:build !linux

package peerevents

import "context"

// Run waits for the end of ctx, because only Linux has kernel events.
func (c *Client) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
