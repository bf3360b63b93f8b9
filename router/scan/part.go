package scan

import "github.com/cognitora/dataplane/internal/jsonscan"

// These are the members of a content part in canonical order.
const (
	partThinking uint8 = iota
	partText
	partRefusal
	partTitle
	partContext
	partName
	partInput
	partID
	partToolUseID
	partContent
	partMedia // rank of the first media member; the other media members follow
)

// mediaMembers are the members that contain, or lead to, the data or the address of an image,
// audio, video or file. The first one in the order of mediaMembers counts.
var mediaMembers = [...]string{
	"url", "data", "image_url", "image", "input_audio", "audio", "audio_url", "video_url", "video",
	"input_video", "source", "file", "file_data", "file_id", "file_url", "image_embeds",
	"audio_embeds", "uuid",
}

const partUnknown = partMedia + uint8(len(mediaMembers))

func partMember(key []byte) uint8 {
	switch string(key) {
	case "text":
		return partText
	case "type", "cache_control", "detail", "format":
		return partUnknown
	case "thinking":
		return partThinking
	case "refusal":
		return partRefusal
	case "title":
		return partTitle
	case "context":
		return partContext
	case "name":
		return partName
	case "input":
		return partInput
	case "id":
		return partID
	case "tool_use_id":
		return partToolUseID
	case "content":
		return partContent
	}
	for i, name := range mediaMembers {
		if string(key) == name {
			return partMedia + uint8(i)
		}
	}
	return partUnknown
}

// content reads a string, a list of parts, one part, or null. The value is the content of message
// t, or other content if t is nil.
func (r *Request) content(t *turn) {
	switch r.c.Kind() {
	case jsonscan.String:
		r.Text = append(r.Text, markText)
		if r.c.OpenString() {
			r.longText(len(r.Text), inText{at: inContent, turn: t})
		}
	case jsonscan.Array:
		r.contentParts(t, len(r.Text), r.c.Array())
	case jsonscan.Object:
		r.part(nil)
	case jsonscan.Null:
		r.c.Literal()
	default:
		r.wrong("a string or a list of content parts")
	}
}

// contentParts reads the remaining parts of a list; ok says that more parts follow. The text of the
// list begins at start.
func (r *Request) contentParts(t *turn, start int, ok bool) {
	for ; ok; ok = r.c.NextElement() {
		r.part(t)
		r.clip(start)
	}
}

// part reads one part of a content list, or an object in it. Of a repeated member the first one
// counts. t is the message directly around it, or nil.
func (r *Request) part(t *turn) {
	r.root.framing.tokens += framedPart
	switch r.c.Kind() {
	case jsonscan.Object:
	case jsonscan.String:
		r.marked(markText)
		return
	default:
		r.wrong("made of content parts: objects with a type")
		return
	}
	r.partMembers(t, partPlace{}, len(r.order.segments), r.c.Object())
}

// partPlace is the state of a part in a mark. partPlace has no pointers.
type partPlace struct {
	seen uint32 // members of the part so far
	text int    // beginning of the text's piece in Text
}

// partMembers reads the remaining members of a part; ok says that more members follow. The part's
// pieces are the segments from base on.
func (r *Request) partMembers(t *turn, p partPlace, base int, ok bool) {
	for ; ok; ok = r.c.NextMember() {
		m := partMember(r.c.Key())
		if m == partUnknown || p.seen&(1<<m) != 0 {
			r.unread()
			continue
		}
		p.seen |= 1 << m
		p.text = len(r.Text)
		if m == partText && t != nil && r.c.Kind() == jsonscan.String {
			r.Text = append(r.Text, markText)
			r.c.OpenString()
			r.longText(len(r.Text), inText{at: inPart, turn: t, base: base, part: p})
		} else {
			r.partValue(m)
		}
		r.push(m, p.text)
	}
	r.arrange(base)
}

func (r *Request) partValue(m uint8) {
	kind := r.c.Kind()
	switch {
	case m >= partMedia:
		r.media()
	case m == partInput:
		r.root.framing.tokens += framedTool
		r.value()
	case m == partContent:
		r.root.framing.tokens += framedTurn
		r.content(nil)
	case m == partText && kind != jsonscan.Null && kind != jsonscan.String:
		r.wrong("made of parts whose text is a string")
	case kind != jsonscan.String:
		r.unread()
	default:
		r.marked(partMarks[m])
	}
}

var partMarks = [...]byte{
	partThinking: markThinking, partText: markText, partRefusal: markText, partTitle: markText,
	partContext: markText, partName: markName, partID: markID, partToolUseID: markID,
}

// media reads an image, audio, video or file: a string, or an object or list that contains one.
func (r *Request) media() {
	switch r.c.Kind() {
	case jsonscan.String:
		r.Text = r.appendMediaHash(append(r.Text, markMedia))
	case jsonscan.Object:
		r.part(nil)
	case jsonscan.Array:
		r.content(nil)
	default:
		r.c.Skip()
	}
}
