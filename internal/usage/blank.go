package usage

import "github.com/cognitora/dataplane/internal/jsonscan"

// Blank writes spaces over the usage members at the top level of doc, which is valid JSON, and over
// the comma that goes with each, so that doc stays as long as it is and is valid JSON without them.
// It does not allocate.
func Blank(doc []byte) {
	c := jsonscan.New(doc)
	before := false // a member that stays
	for ok := c.Object(); ok; {
		start := c.Pos()
		isUsage := string(c.Key()) == "usage"
		c.Skip()
		end := c.Pos()
		ok = c.NextMember()
		switch {
		case !isUsage:
			before = true
		case before: // the comma before it
			for start--; doc[start] != ','; start-- {
			}
			blank(doc[start:end])
		case ok: // the comma after it
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
