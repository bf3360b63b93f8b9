package scan

// Tokens around the parts of a prompt, as common chat templates and tokenizers have them. Short
// parts have more of them than of text.
const (
	framedTalk   = 6  // the beginning of a conversation, and of its answer
	framedTurn   = 4  // a message, without its role
	framedPart   = 1  // a part of a message's content
	framedTool   = 16 // a tool call, or the definition of a tool
	framedMember = 3  // a member of an object in a value: quotes, colon and comma
	framedValue  = 2  // an element of a list in a value
	framedPrompt = 4  // a plain prompt, or two texts to compare
)

// framing is what the prompt has besides the text.
type framing struct {
	tokens   int64 // around its parts
	unread   int64 // bytes of members of messages that the text leaves out
	compared [2]compared
}

// compared are the texts on one side of a comparison.
type compared struct{ texts, bytes int64 }

// side returns on which side of a comparison the texts of a member are.
func side(m rootMember) int {
	if m == rootDocuments || m == rootText2 {
		return 1
	}
	return 0
}

// unread skips a member of a message that is not in the text. An engine may read it all the same.
func (r *Request) unread() {
	start := r.c.Pos()
	r.c.Skip()
	r.root.framing.unread += int64(r.c.Pos() - start)
}

// Framing returns what a prompt has besides its text or token ids: tokens that a template puts
// around the parts, and bytes that an engine may read as text. Those of the shorter side of a
// comparison count as often as an engine reads them again. Both are estimates.
func (r *Request) Framing() (tokens, bytes int64) {
	f := &r.root.framing
	tokens, bytes = f.tokens, f.unread
	few, many := f.compared[0], f.compared[1]
	if few.texts > many.texts {
		few, many = many, few
	}
	if few.texts > 0 {
		bytes += few.bytes * ((many.texts - 1) / few.texts)
	}
	return tokens + many.texts*framedPrompt, bytes
}
