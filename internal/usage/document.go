package usage

import (
	"bytes"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

var (
	choicesKey  = []byte(`"choices"`)
	responseKey = []byte(`"response"`)
	respPrefix  = []byte("resp_")
)

// ChoicesEmpty reports whether doc is a chunk without choices, `"choices":[]`. The last chunk of a
// stream is such a chunk and carries only usage.
func ChoicesEmpty(doc []byte) bool {
	if !bytes.Contains(doc, choicesKey) {
		return false
	}
	c := jsonscan.New(doc)
	empty := false
	for ok := c.Object(); ok; ok = c.NextMember() {
		if string(c.Key()) != "choices" {
			c.Skip()
			continue
		}
		if c.Kind() != jsonscan.Array || c.Array() {
			return false
		}
		empty = true
	}
	c.End()
	return empty && !c.Failed()
}

// ResponseID returns the id of the Responses API object in doc: a top-level id that begins with
// resp_, or response.id in the data of a stream event. The id aliases doc; nil if there is none.
// ResponseID does not allocate.
func ResponseID(doc []byte) []byte {
	if !bytes.Contains(doc, respPrefix) && !bytes.Contains(doc, responseKey) {
		return nil
	}
	c := jsonscan.New(doc)
	var id []byte
	for ok := c.Object(); ok; ok = c.NextMember() {
		switch string(c.Key()) {
		case "id":
			if top := plainString(&c); bytes.HasPrefix(top, respPrefix) {
				id = top
			}
		case "response":
			if inner := idOf(&c); inner != nil {
				id = inner
			}
		default:
			c.Skip()
		}
	}
	if c.End(); c.Failed() {
		return nil
	}
	return id
}

// idOf returns the id of the object at the cursor.
func idOf(c *jsonscan.Cursor) (id []byte) {
	if c.Kind() != jsonscan.Object {
		c.Skip()
		return nil
	}
	for ok := c.Object(); ok; ok = c.NextMember() {
		if string(c.Key()) == "id" {
			id = plainString(c)
		} else {
			c.Skip()
		}
	}
	return id
}

// plainString reads a value and returns it if it is a non-empty string without escapes, as every id
// is.
func plainString(c *jsonscan.Cursor) []byte {
	if c.Kind() != jsonscan.String {
		c.Skip()
		return nil
	}
	raw, escaped := c.String()
	if escaped || len(raw) == 0 {
		return nil
	}
	return raw
}
