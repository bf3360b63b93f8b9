// Package takeover hands a running process's listening sockets to the process that will replace it,
// over a Unix socket (SCM_RIGHTS). The two processes then share one accept queue. So no connection
// is refused or lost, whichever process accepts.
//
// The new process asks (hello) and gets the sockets (offer). The new process accepts nothing until
// it is ready; then it says so (serving), and the old one stops accepting. Until then the end of
// one process changes nothing for clients: if the new one ends, the old one goes on, and if the old
// one ends, the new one serves. Each process checks that the other has the same user, so that
// neither gains rights. Messages are lines of JSON, one at a time in each direction.
package takeover

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// Protocol is the version of the protocol. The version changes when an older process could not
// understand it.
const Protocol = 1

// ErrNobody means that no process offers its sockets.
var ErrNobody = errors.New("no running process offers its sockets")

// Socket is a listening socket that can be handed over.
type Socket struct {
	Setting  string // the setting of its address, such as router.listen
	Address  string // as configured; a process with another address opens its own socket
	Listener net.Listener
}

// Bounds of the protocol.
const (
	maxMessage  = 4096 // bytes of a message
	maxSockets  = 8
	maxAsking   = 16 // connections at a time; further ones are closed
	answerLimit = 5 * time.Second
)

// Kinds of messages.
const (
	kindHello   = "hello"
	kindOffer   = "offer"
	kindRefused = "refused"
	kindServing = "serving"
)

// message is one line. All protocols have the first four fields.
type message struct {
	Kind     string `json:"kind"`
	Protocol int    `json:"protocol"`
	Version  string `json:"version"` // version of the program, for people
	Reason   string `json:"reason,omitempty"`
	PID      int    `json:"pid,omitempty"`  // id of the process that offers
	Auth     string `json:"auth,omitempty"` // how it asks clients who they are
	// offer: the sockets of the descriptors, in order; serving: the sockets that were taken
	Sockets []resource `json:"sockets,omitempty"`
}

// resource identifies a socket.
type resource struct {
	Setting string `json:"setting"`
	Address string `json:"address"`
}

// parse parses a message without its line end.
func parse(line []byte) (m message, err error) {
	if len(line) > maxMessage {
		return m, fmt.Errorf("a message of %d bytes; at most %d are read", len(line), maxMessage)
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("not a message: %w", err)
	}
	switch m.Kind {
	case kindHello, kindOffer, kindRefused, kindServing:
	default:
		return m, fmt.Errorf("a message of unknown kind %.32q", m.Kind)
	}
	if len(m.Sockets) > maxSockets {
		return m, fmt.Errorf("a message with %d sockets; at most %d are taken", len(m.Sockets), maxSockets)
	}
	return m, nil
}

func appendMessage(b []byte, m message) ([]byte, error) {
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(text) > maxMessage {
		return nil, fmt.Errorf("the names of the sockets take %d bytes; at most %d are sent", len(text), maxMessage)
	}
	return append(append(b, text...), '\n'), nil
}
