package config

import (
	"fmt"
	"strings"
)

// FieldError is an error of one setting of a section, from Validate, Examine or a start. If the
// section is an element of a list, the error says "engine[1].url: ..." instead of "engine.url:
// ..."; see In. The error unwraps to the argument of %w in its text.
type FieldError struct {
	section string // "engine", "engine[1]"
	key     string // "url", "offload.nixl_port"
	format  string
	args    []any // a Mention among them is replaced by its text for a user of this section
	text    error
}

// Mention is another setting of the same section, in the text of a FieldError.
type Mention struct {
	Key  string
	Flag string // printed too, except in a list, where flags do not apply; may be ""
}

// Wrong returns an error about a key of a section, formatted like fmt.Errorf. A Mention among args
// formats as a string (%s).
func Wrong(section, key, format string, args ...any) *FieldError {
	shown := make([]any, len(args))
	for i, arg := range args {
		if m, ok := arg.(Mention); ok {
			arg = m.in(section)
		}
		shown[i] = arg
	}
	return &FieldError{section: section, key: key, format: format, args: args, text: fmt.Errorf(format, shown...)}
}

func (m Mention) in(section string) string {
	if m.Flag == "" || strings.Contains(section, "[") {
		return join(section, m.Key)
	}
	return join(section, m.Key) + " (" + m.Flag + ")"
}

func (e *FieldError) Error() string {
	return join(e.section, e.key) + ": " + e.text.Error()
}

// Unwrap returns the text's error, which wraps those in args.
func (e *FieldError) Unwrap() error { return e.text }

// In rewrites err for the section at path, such as "engine[1]". In changes a FieldError, also
// inside a Missing, and no other error.
func In(err error, path string) error {
	switch e := err.(type) {
	case *FieldError:
		if e.section == path {
			return e
		}
		return Wrong(path, e.key, e.format, e.args...)
	case Missing:
		return Missing{In(e.Err, path)}
	}
	return err
}
