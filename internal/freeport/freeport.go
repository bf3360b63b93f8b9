// Package freeport gives tests addresses at which a server can stop and start again.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
)

// Ports that the kernel gives to no connection and to no listener on port 0. Linux takes those from
// 32768 up.
const (
	lowest  = 20000
	highest = 32767
)

// Address returns a loopback address with a free port. The kernel gives the port to nobody else
// while the test's server is stopped.
func Address(t testing.TB) string {
	t.Helper()
	var err error
	for range 100 {
		at := fmt.Sprintf("127.0.0.1:%d", lowest+rand.IntN(highest-lowest+1))
		var l net.Listener
		if l, err = net.Listen("tcp", at); err == nil {
			l.Close()
			return at
		}
	}
	t.Fatal("no free port: ", err)
	return ""
}
