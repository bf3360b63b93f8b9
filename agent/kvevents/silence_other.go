//go:build !linux

package kvevents

import (
	"net"
	"time"
)

func limitUnacknowledged(*net.TCPConn, time.Duration) {}
