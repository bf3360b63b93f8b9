package scan

import "bytes"

// These constants bound a multipart body: parts, bytes of one part's headers, bytes of the model's
// name. RFC 2046 bounds the boundary.
const (
	maxParts       = 256
	maxPartHeader  = 8 << 10
	maxField       = 4 << 10
	maxBoundary    = 70
	boundaryName   = "boundary"
	dispositionKey = "content-disposition"
)

var (
	headerEnd = []byte("\r\n\r\n")
	lineEnd   = []byte("\r\n")
)

// ScanMultipart reads the fields model and stream of a multipart/form-data body into r, which must
// be fresh or Reset. ScanMultipart skips file parts without copying. contentType is the request's
// header value with the boundary. The body is borrowed: see Request. The error is an *Error.
func ScanMultipart(contentType, body []byte, r *Request) error {
	r.form = true
	boundary := parameter(contentType, boundaryName)
	if len(boundary) == 0 || len(boundary) > maxBoundary {
		return &Error{
			Code: CodeMultipart, Param: "Content-Type",
			Message: "the Content-Type has no usable boundary; send multipart/form-data; boundary=…",
		}
	}
	start := len(r.scratch.decoded)
	r.scratch.decoded = append(append(r.scratch.decoded, "\r\n--"...), boundary...)
	if err := r.parts(body, r.decodedFrom(start)); err != nil {
		return err
	}
	if len(r.Model) == 0 {
		return &Error{
			Code: CodeMissing, Param: "model",
			Message: "the form field `model` is missing; name one of the models that GET /v1/models lists",
		}
	}
	return nil
}

// parts walks over the parts. delimiter is the line end, two dashes and the boundary before each
// part. Only the first delimiter may lack the line end.
func (r *Request) parts(body, delimiter []byte) error {
	at := len(delimiter) - len(lineEnd)
	if !bytes.HasPrefix(body, delimiter[len(lineEnd):]) {
		i := bytes.Index(body, delimiter)
		if i < 0 {
			return malformed(0, "the boundary of the Content-Type does not occur in it")
		}
		at = i + len(delimiter)
	}
	for range maxParts {
		rest := bytes.TrimLeft(body[at:min(len(body), at+maxPartHeader)], " \t")
		if bytes.HasPrefix(rest, []byte("--")) {
			return nil
		}
		if !bytes.HasPrefix(rest, lineEnd) {
			return malformed(at, "a boundary is not followed by a line end")
		}
		end := bytes.Index(body[at:], delimiter)
		if end < 0 {
			return malformed(len(body), "the closing boundary is missing")
		}
		if err := r.formPart(body, Span{at, at + end}); err != nil {
			return err
		}
		at += end + len(delimiter)
	}
	return malformed(at, "it has too many parts")
}

func malformed(offset int, why string) error {
	return &Error{
		Code: CodeMultipart, Message: "the request body is not valid multipart/form-data: " + why, Offset: offset,
	}
}

// formPart reads one part, beginning at the line end behind its boundary.
func (r *Request) formPart(body []byte, part Span) error {
	head := body[part.Start:min(part.End, part.Start+maxPartHeader)]
	n := bytes.Index(head, headerEnd)
	if n < 0 {
		return malformed(part.Start, "the headers of a part have no end, or are too long")
	}
	disposition := partHeader(head[:n], dispositionKey)
	if parameter(disposition, "filename") != nil {
		return nil
	}
	value := Span{part.Start + n + len(headerEnd), part.End}
	switch string(parameter(disposition, "name")) {
	case "model":
		return r.formModel(body, value)
	case "stream":
		return r.formStream(body[value.Start:value.End], value)
	}
	return nil
}

func (r *Request) formModel(body []byte, at Span) error {
	code, message := CodeValue, ""
	switch {
	case at.End-at.Start > maxField:
		code = CodeTooLong
		message = "the form field `model` is too long; name one of the models that GET /v1/models lists"
	case r.root.model != Span{}:
		message = "the form field `model` appears twice; send it once"
	default:
		r.Model, r.root.model = body[at.Start:at.End], at
		return nil
	}
	return &Error{Code: code, Param: "model", Message: message, Offset: at.Start}
}

func (r *Request) formStream(value []byte, at Span) error {
	switch {
	case bytes.EqualFold(value, []byte("true")), string(value) == "1":
		r.Stream = true
	case bytes.EqualFold(value, []byte("false")), string(value) == "0", len(value) == 0:
		r.Stream = false
	default:
		return &Error{
			Code: CodeValue, Param: "stream", Message: "the form field `stream` must be true or false",
			Offset: at.Start,
		}
	}
	return nil
}

// partHeader returns the value of a header, whose name is given in lower case.
func partHeader(head []byte, name string) []byte {
	for len(head) > 0 {
		line, rest, _ := bytes.Cut(head, lineEnd)
		head = rest
		key, value, found := bytes.Cut(line, []byte(":"))
		if found && len(key) == len(name) && bytes.EqualFold(key, []byte(name)) {
			return bytes.TrimSpace(value)
		}
	}
	return nil
}

// parameter returns a parameter of a header value such as form-data; name="model". parameter
// removes the quotes and keeps escapes. parameter returns nil if the parameter is absent.
func parameter(value []byte, name string) []byte {
	for {
		i := bytes.IndexByte(value, ';')
		if i < 0 {
			return nil
		}
		value = bytes.TrimLeft(value[i+1:], " \t")
		eq := bytes.IndexAny(value, "=;")
		if eq < 0 || value[eq] == ';' {
			continue
		}
		key := bytes.TrimRight(value[:eq], " \t")
		var v []byte
		v, value = parameterValue(bytes.TrimLeft(value[eq+1:], " \t"))
		if len(key) == len(name) && bytes.EqualFold(key, []byte(name)) {
			return v
		}
	}
}

// parameterValue splits a value, quoted or not, from the rest.
func parameterValue(s []byte) (value, rest []byte) {
	if len(s) == 0 || s[0] != '"' {
		if i := bytes.IndexByte(s, ';'); i >= 0 {
			return bytes.TrimRight(s[:i], " \t"), s[i:]
		}
		return bytes.TrimRight(s, " \t"), nil
	}
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[1:i], s[i+1:]
		}
	}
	return s[1:], nil
}
