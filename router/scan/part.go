package scan

import "github.com/cognitora/dataplane/internal/jsonscan"

// Members of a content part, in canonical order.
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
	partMedia // and those of media, by their rank from here on
)

// mediaMembers are the members that hold, or lead to, the bytes or the address
// of an image, audio, video or file. They count in this order.
var mediaMembers = [...]string{
	"url", "data", "image_url", "image", "input_audio", "audio", "audio_url", "video_url", "video", "input_video", "source", "file",
	"file_data", "file_id", "file_url", "image_embeds", "audio_embeds", "uuid",
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

// content reads a string, a list of parts, one part, or null. t is the message
// that it is the content of, nil for content of another kind.
func (r *Request) content(t *turn) {
	switch r.c.Kind() {
	case jsonscan.String:
		r.Text = append(r.Text, markText)
		if r.c.OpenString() {
			r.longText(inText{at: inContent, turn: t})
		}
	case jsonscan.Array:
		r.contentParts(t, r.c.Array())
	case jsonscan.Object:
		r.part(nil)
	case jsonscan.Null:
		r.c.Literal()
	default:
		r.wrong("a string or a list of content parts")
	}
}

// contentParts reads the parts of a list from the next one on, if there is one.
func (r *Request) contentParts(t *turn, ok bool) {
	for ; ok; ok = r.c.NextElement() {
		r.part(t)
	}
}

// part reads one part of a content list, or an object inside of it. Of a member
// that appears twice the first counts. t is the message that it is directly in, if any.
func (r *Request) part(t *turn) {
	switch r.c.Kind() {
	case jsonscan.Object:
	case jsonscan.String:
		r.marked(markText)
		return
	default:
		r.wrong("made of content parts: objects with a type")
		return
	}
	r.partMembers(t, len(r.segments), 0, r.c.Object())
}

// partMembers reads the members of a part from the next one on, if there is one. Its pieces are
// the segments from base on, and it has had the members in seen.
func (r *Request) partMembers(t *turn, base int, seen uint32, ok bool) {
	for ; ok; ok = r.c.NextMember() {
		m := partMember(r.c.Key())
		if m == partUnknown || seen&(1<<m) != 0 {
			r.c.Skip()
			continue
		}
		seen |= 1 << m
		start := len(r.Text)
		if m == partText && t != nil && r.c.Kind() == jsonscan.String {
			r.Text = append(r.Text, markText)
			r.c.OpenString()
			r.longText(inText{at: inPart, turn: t, base: base, start: start, partSeen: seen})
		} else {
			r.partValue(m)
		}
		r.push(m, start)
	}
	r.arrange(base)
}

func (r *Request) partValue(m uint8) {
	kind := r.c.Kind()
	switch {
	case m >= partMedia:
		r.media()
	case m == partInput:
		r.value()
	case m == partContent:
		r.content(nil)
	case m == partText && kind != jsonscan.Null && kind != jsonscan.String:
		r.wrong("made of parts whose text is a string")
	case kind != jsonscan.String:
		r.c.Skip()
	default:
		r.marked(partMarks[m])
	}
}

var partMarks = [...]byte{
	partThinking: markThinking, partText: markText, partRefusal: markText, partTitle: markText, partContext: markText,
	partName: markName, partID: markID, partToolUseID: markID,
}

// media reads what holds an image, audio, video or file: the string itself, or
// an object with it.
func (r *Request) media() {
	switch r.c.Kind() {
	case jsonscan.String:
		raw, escaped := r.c.String()
		if escaped {
			r.spare = jsonscan.AppendUnescaped(r.spare[:0], raw)
			raw = r.spare
		}
		r.Text = r.appendMediaHash(append(r.Text, markMedia), raw)
	case jsonscan.Object:
		r.part(nil)
	case jsonscan.Array:
		r.content(nil)
	default:
		r.c.Skip()
	}
}
