package traces

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"

	"go.opentelemetry.io/otel/trace"
)

// These are the names of the two headers of W3C Trace Context, in the spelling of net/http.
const (
	parentHeader = "Traceparent"
	stateHeader  = "Tracestate"
)

// parentBytes is the length of a traceparent of version 00: version, trace, span and flags, in
// hexadecimal digits.
const parentBytes = 2 + 1 + 32 + 1 + 16 + 1 + 2

// parent is the content of a traceparent.
type parent struct {
	trace trace.TraceID
	id    trace.SpanID
	flags byte
}

func (p *parent) sampled() bool { return p.flags&byte(trace.FlagsSampled) != 0 }

// span returns the context of the client's span. A malformed state is left out.
func (p *parent) span(state string) trace.SpanContext {
	s, err := trace.ParseTraceState(state)
	if err != nil {
		s = trace.TraceState{}
	}
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: p.trace, SpanID: p.id, TraceState: s, Remote: true,
		TraceFlags: trace.TraceFlags(p.flags) & (trace.FlagsSampled | trace.FlagsRandom),
	})
}

// parseParent parses a traceparent of any version. A version after 00 may have more fields, which
// do not count. ok is false for a malformed value. Unknown flags do not count.
func parseParent(v []byte) (p parent, ok bool) {
	v = bytes.Trim(v, " \t")
	if len(v) < parentBytes || v[2] != '-' || v[35] != '-' || v[52] != '-' {
		return p, false
	}
	var version, flags [1]byte
	ok = unhex(version[:], v[:2]) && unhex(p.trace[:], v[3:35]) && unhex(p.id[:], v[36:52]) && unhex(flags[:], v[53:55])
	switch {
	case !ok, version[0] == 0xff, p.trace == trace.TraceID{}, p.id == trace.SpanID{}:
		return p, false
	case len(v) > parentBytes && (version[0] == 0 || v[parentBytes] != '-'):
		return p, false
	}
	p.flags = flags[0]
	return p, true
}

// unhex decodes lower-case digits, of which src has two for each byte of dst.
func unhex(dst, src []byte) bool {
	for _, c := range src {
		if c >= 'A' && c <= 'F' {
			return false
		}
	}
	_, err := hex.Decode(dst, src)
	return err == nil
}

// newContext returns the context of a request that nobody records.
func newContext() (p parent) {
	binary.NativeEndian.PutUint64(p.trace[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(p.trace[8:], rand.Uint64()|1) // 0 is no trace
	binary.NativeEndian.PutUint64(p.id[:], rand.Uint64()|1)
	return p
}

// appendParent appends the header line of a traceparent.
func appendParent(dst []byte, p parent) []byte {
	dst = append(dst, parentHeader+": 00-"...)
	dst = append(hex.AppendEncode(dst, p.trace[:]), '-')
	dst = append(hex.AppendEncode(dst, p.id[:]), '-')
	return append(hex.AppendEncode(dst, []byte{p.flags}), "\r\n"...)
}

// incoming is the trace context among header lines.
type incoming struct {
	parent          []byte // the last traceparent
	parents, states int    // numbers of lines
}

// find finds the trace context among lines.
func find(lines []byte) (in incoming) {
	for len(lines) > 0 {
		line, rest := cut(lines)
		switch name, value := field(line); name {
		case parentHeader:
			in.parent = value
			in.parents++
		case stateHeader:
			in.states++
		}
		lines = rest
	}
	return in
}

// joined returns the values of all tracestate lines as one list.
func joined(lines []byte) string {
	var all []string
	for len(lines) > 0 {
		line, rest := cut(lines)
		if name, value := field(line); name == stateHeader {
			all = append(all, string(value))
		}
		lines = rest
	}
	return strings.Join(all, ",")
}

// without takes the trace context out of lines, in their memory.
func without(lines []byte) []byte {
	kept := lines[:0]
	for len(lines) > 0 {
		line, rest := cut(lines)
		if name, _ := field(line); name == "" {
			kept = append(kept, line...)
		}
		lines = rest
	}
	return kept
}

// cut returns the first line, with its end, and the rest.
func cut(lines []byte) (line, rest []byte) {
	if i := bytes.IndexByte(lines, '\n'); i >= 0 {
		return lines[:i+1], lines[i+1:]
	}
	return lines, nil
}

// field returns the name of a line of the trace context, and its value. For any other line the name
// is empty.
func field(line []byte) (name string, value []byte) {
	if len(line) <= len(stateHeader) || line[0] != 't' && line[0] != 'T' {
		return "", nil
	}
	for _, name := range [...]string{parentHeader, stateHeader} {
		if n := len(name); len(line) > n && line[n] == ':' && strings.EqualFold(string(line[:n]), name) {
			return name, bytes.TrimSpace(line[n+1:])
		}
	}
	return "", nil
}
