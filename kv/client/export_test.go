//go:build linux

package client

// Populated waits until all is mapped that is to be.
func Populated(c *Client) { c.wg.Wait() }
