package usage

import "github.com/cognitora/dataplane/internal/jsonscan"

// Blank overwrites the usage members at the top level of doc with spaces, and one comma with each.
// doc must be valid JSON. The document keeps its length, and stays valid JSON without usage. Blank
// does not allocate.
func Blank(doc []byte) {
	c := jsonscan.New(doc)
	before := false // a remaining member precedes
	for ok := c.Object(); ok; {
		start := c.Pos()
		isUsage := string(c.Key()) == "usage"
		c.Skip()
		end := c.Pos()
		ok = c.NextMember()
		switch {
		case !isUsage:
			before = true
		case before: // remove the comma before it
			for start--; doc[start] != ','; start-- {
			}
			blank(doc[start:end])
		case ok: // remove the comma after it
			blank(doc[start:c.Pos()])
		default:
			blank(doc[start:end])
		}
	}
}

func blank(b []byte) {
	for i := range b {
		b[i] = ' '
	}
}
