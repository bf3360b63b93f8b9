// Package takeover hands a running process's listening sockets to the process that is to replace
// it, over a Unix socket (SCM_RIGHTS). Both share one accept queue then, so no connection is
// refused or lost, whichever of them accepts.
//
// The new process asks (hello) and gets the sockets (offer). It accepts nothing until it is ready;
// then it says so (serving), and the old one stops accepting. Until then the death of either
// changes nothing for clients: the old one goes on where the new one ends, and the new one serves
// where the old one ends. Both check that the other has their own user, so that neither gains
// rights. Messages are lines of JSON, one at a time in each direction.
package takeover

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// Protocol is what this version speaks. It changes when an older process could not follow.
const Protocol = 1

// ErrNobody says that no process offers its sockets.
var ErrNobody = errors.New("no running process offers its sockets")

// Socket is a listening socket that can be handed over.
type Socket struct {
	Setting  string // by which its address is configured, such as router.listen
	Address  string // as configured: a process with another address there opens its own
	Listener net.Listener
}

// Bounds of the conversation.
const (
	maxMessage  = 4096 // bytes
	maxSockets  = 8
	maxAsking   = 16 // connections at once; further ones are closed
	answerLimit = 5 * time.Second
)

// Kinds of messages.
const (
	kindHello   = "hello"
	kindOffer   = "offer"
	kindRefused = "refused"
	kindServing = "serving"
)

// message is one line. Every protocol has the first four fields.
type message struct {
	Kind     string     `json:"kind"`
	Protocol int        `json:"protocol"`
	Version  string     `json:"version"` // of the program, for people
	Reason   string     `json:"reason,omitempty"`
	PID      int        `json:"pid,omitempty"`     // of who offers
	Sockets  []resource `json:"sockets,omitempty"` // offer: what the descriptors are, in order; serving: which were taken
}

// resource names a socket.
type resource struct {
	Setting string `json:"setting"`
	Address string `json:"address"`
}

// parse reads a message without its line's end.
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
