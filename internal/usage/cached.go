package usage

import (
	"bytes"
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// AppendCached appends doc to out, with n as usage.prompt_tokens_details.cached_tokens. If doc has
// no such number, has n already, or is no valid JSON, AppendCached returns out, and changed is
// false. AppendCached rejects a document without cached tokens as fast as a substring search.
func AppendCached(out, doc []byte, n int64) (_ []byte, changed bool) {
	if !bytes.Contains(doc, cachedKey) {
		return out, false
	}
	c := jsonscan.New(doc)
	start, end := numberAt(&c, cachedPath)
	if c.End(); c.Failed() || end == 0 {
		return out, false
	}
	if have, ok := jsonscan.Int(doc[start:end]); ok && have == n {
		return out, false
	}
	out = strconv.AppendInt(append(out, doc[:start]...), n, 10)
	return append(out, doc[end:]...), true
}

var (
	cachedKey  = []byte(`"cached_tokens"`)
	cachedPath = []string{"usage", "prompt_tokens_details", "cached_tokens"}
)

// numberAt reads the value at c and returns where the number at path in it stands; end is 0 if
// there is none.
func numberAt(c *jsonscan.Cursor, path []string) (start, end int) {
	kind := c.Kind()
	switch {
	case len(path) > 0 && kind == jsonscan.Object:
		for ok := c.Object(); ok; ok = c.NextMember() {
			if string(c.Key()) != path[0] {
				c.Skip()
			} else if s, e := numberAt(c, path[1:]); e > 0 {
				start, end = s, e
			}
		}
		return start, end
	case len(path) == 0 && kind == jsonscan.Number:
		start = c.Pos()
		c.Skip()
		return start, c.Pos()
	}
	c.Skip()
	return 0, 0
}
