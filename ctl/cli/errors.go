package cli

import (
	"strconv"
	"strings"
)

// hinted is an error with a second line, the hint.
type hinted struct {
	error
	hint string
}

func (h hinted) Hint() string  { return h.hint }
func (h hinted) Unwrap() error { return h.error }

// WithHint adds a line with a hint to err.
func WithHint(err error, hint string) error { return hinted{err, hint} }

// misused is an error of the command line, for which the exit status is 2.
type misused struct{ error }

func (m misused) Unwrap() error { return m.error }

// Misused marks err as a wrong use of flags or arguments. Misused returns nil for nil.
func Misused(err error) error {
	if err == nil {
		return nil
	}
	return misused{err}
}

// Cause returns the part of a gRPC message about the connection, without gRPC's own words.
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
