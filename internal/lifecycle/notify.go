package lifecycle

import (
	"net"
	"os"
)

// Notify tells the service manager the state of the service, as sd_notify(3) does: READY=1 or
// MAINPID=NUMBER. Notify does nothing without a manager ($NOTIFY_SOCKET).
func Notify(state string) error {
	at := os.Getenv("NOTIFY_SOCKET") // a name that begins with @ is abstract, also for package net
	if at == "" {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: at, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte(state))
	return err
}
