//go:build !linux

package peerevents

import "context"

// Run waits for the end of ctx: only Linux tells.
func (c *Client) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
