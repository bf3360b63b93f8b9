package lifecycle

import (
	"net"
	"os"
)

// Notify tells the service manager the state of the service, as sd_notify(3) does: READY=1 or
// MAINPID=NUMBER. Without a manager that listens ($NOTIFY_SOCKET) it does nothing.
func Notify(state string) error {
	at := os.Getenv("NOTIFY_SOCKET") // a name that begins with @ is an abstract one, for net too
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
