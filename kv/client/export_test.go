//go:build linux

package client

// Populated waits until populate is done.
func Populated(c *Client) { c.wg.Wait() }
