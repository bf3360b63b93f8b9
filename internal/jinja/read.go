package jinja

import (
	"errors"
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// ErrNumber is the error for a number that Python represents exactly and this package cannot.
var ErrNumber = errors.New("a whole number of more than 64 bits")

// Read reads the next value of a JSON document. Read returns ErrNumber if the value cannot be
// represented exactly. Invalid JSON is reported by the cursor's Err.
func Read(c *jsonscan.Cursor) (Value, error) {
	switch c.Kind() {
	case jsonscan.Null:
		c.Literal()
		return nil, nil
	case jsonscan.Bool:
		return c.Literal(), nil
	case jsonscan.Number:
		return readNumber(string(c.Number()))
	case jsonscan.String:
		return ReadString(c), nil
	case jsonscan.Array:
		out := &List{}
		for ok := c.Array(); ok; ok = c.NextElement() {
			v, err := Read(c)
			if err != nil {
				return nil, err
			}
			out.Items = append(out.Items, v)
		}
		return out, nil
	case jsonscan.Object:
		out := &Dict{}
		for ok := c.Object(); ok; ok = c.NextMember() {
			key := string(c.AppendKey(nil))
			v, err := Read(c)
			if err != nil {
				return nil, err
			}
			out.Set(key, v)
		}
		return out, nil
	}
	c.Skip()
	return nil, c.Err()
}

// ReadString reads a string.
func ReadString(c *jsonscan.Cursor) string {
	raw, escaped := c.String()
	if !escaped {
		return string(raw)
	}
	return string(jsonscan.AppendUnescaped(make([]byte, 0, len(raw)), raw))
}

func readNumber(s string) (Value, error) {
	if strings.ContainsAny(s, ".eE") {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return nil, ErrNumber
		}
		return f, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return nil, ErrNumber
	}
	return n, nil
}
