package config

import (
	"fmt"
	"strings"
)

// FieldError is what is wrong with one setting of a section, said by Validate, Examine or a start.
// A section may be an element of a list of them, where it says "engine[1].url: ..." for
// "engine.url: ...": see In. It unwraps to what a %w in its text stands for.
type FieldError struct {
	section string // "engine", "engine[1]"
	key     string // "url", "offload.nixl_port"
	format  string
	args    []any // a Mention among them stands for the text that a user of this section reads
	text    error
}

// Mention is another setting of the same section, in the text of a FieldError.
type Mention struct {
	Key  string
	Flag string // shown too, except in a list, where no flag reaches; may be ""
}

// Wrong is an error about a key of a section, formatted as fmt.Errorf does, with each Mention among
// args as a string (%s).
func Wrong(section, key, format string, args ...any) *FieldError {
	return wrong(section, key, format, args)
}

func wrong(section, key, format string, args []any) *FieldError {
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

// Unwrap gives the text, which wraps what it was made of.
func (e *FieldError) Unwrap() error { return e.text }

// In is err as it reads for the section at path, such as "engine[1]". Errors other than a
// FieldError, Missing or not, stay as they are.
func In(err error, path string) error {
	switch e := err.(type) {
	case *FieldError:
		if e.section == path {
			return e
		}
		return wrong(path, e.key, e.format, e.args)
	case Missing:
		return Missing{In(e.Err, path)}
	}
	return err
}
