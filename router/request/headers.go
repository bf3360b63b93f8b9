package request

import (
	"strconv"
	"time"

	"github.com/cognitora/dataplane/router/nvext"
	"github.com/cognitora/dataplane/router/scan"
)

// OwnHeaders are the headers of a request that are addressed to the router.
type OwnHeaders struct {
	Sessions      SessionIDs
	Pin, Deadline []byte // nil: absent
	Routing       bool   // there are headers for ReadHeaders
}

// Note takes a header, whose name is in the spelling of net/http, if it is addressed to the router.
// Of several headers of one name the first one that is not empty counts.
func (o *OwnHeaders) Note(name, value []byte) {
	if len(name) >= len("Thread-Id") && (name[0] == 'X' || name[0] == 'T') {
		o.note(name, value)
	}
}

func (o *OwnHeaders) note(name, value []byte) {
	switch string(name) {
	case "X-Cgn-Node":
		first(&o.Pin, value)
	case "X-Cgn-Deadline-Ms":
		first(&o.Deadline, value)
	default:
		o.Routing = o.Routing || nvext.IsHeader(name)
		o.Sessions.Note(name, value)
	}
}

func first(at *[]byte, value []byte) {
	if len(*at) == 0 {
		*at = value
	}
}

// ReadDeadline reads the value of x-cgn-deadline-ms, which counts from Received. The error is a
// *scan.Error.
func (r *Request) ReadDeadline(v []byte) error {
	if len(v) == 0 {
		return nil
	}
	ms, err := strconv.ParseInt(stringOf(v), 10, 32)
	if err != nil || ms <= 0 {
		return errDeadline
	}
	r.Deadline = r.Received.Add(time.Duration(ms) * time.Millisecond)
	return nil
}

var errDeadline = &scan.Error{
	Code: scan.CodeValue, Param: "x-cgn-deadline-ms",
	Message: "x-cgn-deadline-ms must be a positive number of milliseconds",
}
