package scan

import "github.com/cognitora/dataplane/internal/jsonscan"

// Edit replaces body[At.Start:At.End] by With; At.Start == At.End inserts.
type Edit struct {
	At   Span
	With []byte
}

// Splice appends to dst the segments that make up body with the edits applied:
// written one after the other they are the new body. edits are sorted by start
// and do not overlap. The segments alias body and the edits.
func Splice(dst [][]byte, body []byte, edits []Edit) [][]byte {
	from := 0
	for _, e := range edits {
		dst = appendSegment(dst, body[from:e.At.Start])
		dst = appendSegment(dst, e.With)
		from = e.At.End
	}
	return appendSegment(dst, body[from:])
}

func appendSegment(dst [][]byte, s []byte) [][]byte {
	if len(s) == 0 {
		return dst
	}
	return append(dst, s)
}

// EditModel adds to dst, which stays sorted, the edit that makes name the model
// of the request. The edit is valid until Reset.
func (r *Request) EditModel(dst []Edit, name []byte) []Edit {
	start := len(r.decoded)
	if r.form {
		r.decoded = append(r.decoded, name...)
		return insertEdit(dst, Edit{r.ModelSpan, r.scratch(start)})
	}
	if r.ModelSpan != (Span{}) {
		r.decoded = jsonscan.AppendQuoted(r.decoded, name)
		return insertEdit(dst, Edit{r.ModelSpan, r.scratch(start)})
	}
	if r.Empty && len(dst) > 0 {
		r.decoded = append(r.decoded, ',')
	}
	r.decoded = append(r.decoded, `"model":`...)
	r.decoded = jsonscan.AppendQuoted(r.decoded, name)
	if !r.Empty {
		r.decoded = append(r.decoded, ',')
	}
	return insertEdit(dst, Edit{Span{r.MembersAt, r.MembersAt}, r.scratch(start)})
}

// scratch returns what was added to r.decoded since start. Growth moves the
// buffer but leaves what was handed out where it is.
func (r *Request) scratch(start int) []byte {
	return r.decoded[start:len(r.decoded):len(r.decoded)]
}

var (
	optionsMember   = []byte(`"stream_options":{"include_usage":true},`)
	optionsOnly     = []byte(`,"stream_options":{"include_usage":true}`)
	optionsObject   = []byte(`{"include_usage":true}`)
	usageMember     = []byte(`"include_usage":true,`)
	usageOnlyMember = []byte(`"include_usage":true`)
	trueValue       = []byte(`true`)
	falseValue      = []byte(`false`)
)

// EditIncludeUsage adds to dst, which stays sorted, the edit that makes
// stream_options.include_usage true, whatever the request has there, and, with
// it, no more than one report. It adds nothing where include_usage is so already.
func (r *Request) EditIncludeUsage(dst []Edit) []Edit {
	o := r.options
	switch {
	case r.IncludeUsage || r.form:
		return dst
	case r.StreamOptions == (Span{}):
		return r.insertOptions(dst)
	case o.null:
		return insertEdit(dst, Edit{r.StreamOptions, optionsObject})
	}
	if o.continuous != (Span{}) { // it counts only where include_usage is true, which the client has not asked for
		dst = insertEdit(dst, Edit{o.continuous, falseValue})
	}
	switch {
	case o.usage != (Span{}):
		return insertEdit(dst, Edit{o.usage, trueValue})
	case o.empty:
		return insertEdit(dst, Edit{Span{o.membersAt, o.membersAt}, usageOnlyMember})
	}
	return insertEdit(dst, Edit{Span{o.membersAt, o.membersAt}, usageMember})
}

// insertOptions adds the whole member, first in the root. In an empty root a
// comma is needed only where another edit has made it not empty.
func (r *Request) insertOptions(dst []Edit) []Edit {
	with := optionsMember
	if r.Empty {
		with = optionsOnly
		if len(dst) == 0 {
			with = optionsOnly[1:]
		}
	}
	return insertEdit(dst, Edit{Span{r.MembersAt, r.MembersAt}, with})
}

// insertEdit adds e behind all edits that do not start after it.
func insertEdit(dst []Edit, e Edit) []Edit {
	dst = append(dst, e)
	i := len(dst) - 1
	for ; i > 0 && dst[i-1].At.Start > e.At.Start; i-- {
		dst[i] = dst[i-1]
	}
	dst[i] = e
	return dst
}
