package cli

import (
	"strconv"
	"strings"
)

// hinted is an error with a second line that says what to do.
type hinted struct {
	error
	hint string
}

func (h hinted) Hint() string  { return h.hint }
func (h hinted) Unwrap() error { return h.error }

// WithHint adds to err a line that says what to do.
func WithHint(err error, hint string) error { return hinted{err, hint} }

// Cause is what a message of gRPC says about a connection, without how gRPC came to know of it.
func Cause(message string) string {
	before, quoted, found := strings.Cut(message, "connection error: desc = ")
	if !found {
		return message
	}
	prefix, err := strconv.QuotedPrefix(quoted)
	if err != nil {
		return message
	}
	text, _ := strconv.Unquote(prefix)
	for _, layer := range []string{"transport: ", "Error while dialing: ", "authentication handshake failed: "} {
		text = strings.TrimPrefix(text, layer)
	}
	return strings.TrimSuffix(before, "last connection error: ") + text + strings.TrimPrefix(quoted, prefix)
}
