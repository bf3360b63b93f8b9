package request

// SessionHeaders are the headers in which clients send a session's id, in the spelling of net/http.
// The first of them that has an id wins. The first one is the router's own. The others are sent by
// clients of Dynamo, Claude Code, Codex, and others.
var SessionHeaders = [...]string{
	"X-Cgn-Session-Id", "X-Dynamo-Session-Id", "X-Claude-Code-Session-Id", "Thread-Id", "X-Session-Id",
}

// SessionIDs collects the values of SessionHeaders.
type SessionIDs [len(SessionHeaders)][]byte

// Note takes the value of a header, whose name is in the spelling of net/http, if the header has a
// session's id. Of several headers of one name the first one counts.
func (s *SessionIDs) Note(name, value []byte) bool {
	at := 0
	switch string(name) {
	case "X-Cgn-Session-Id":
	case "X-Dynamo-Session-Id":
		at = 1
	case "X-Claude-Code-Session-Id":
		at = 2
	case "Thread-Id":
		at = 3
	case "X-Session-Id":
		at = 4
	default:
		return false
	}
	if s[at] == nil {
		s[at] = value
	}
	return true
}

// ID returns the session's id, or nil if there is none.
func (s *SessionIDs) ID() []byte {
	for _, id := range s {
		if len(id) > 0 {
			return id
		}
	}
	return nil
}
