//go:build !linux

package events

import (
	"net"
	"time"
)

func limitUnacknowledged(*net.TCPConn, time.Duration) {}
