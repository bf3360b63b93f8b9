package nvext

import (
	"bytes"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/router/scan"
)

// routerPrefix begins the names of the headers that override a setting.
const routerPrefix = "X-Cgn-Router-"

// rankHeader and engineRankHeader name the data-parallel rank. Engines read engineRankHeader.
const (
	rankHeader       = "x-dynamo-dp-rank"
	engineRankHeader = "x-data-parallel-rank"
)

// IsHeader says whether ReadHeaders must see a header, whose name is in the spelling of net/http.
func IsHeader(name []byte) bool {
	return bytes.HasPrefix(name, []byte(routerPrefix)) ||
		slices.ContainsFunc(otherHeaders, func(h string) bool { return h == string(name) })
}

// headers are the headers that ReadHeaders knows, in lower case: one for each simple member of
// nvext.router, those of Dynamo, and one for allowed_worker_ids.
var headers = func() []field {
	all := []field{
		{name: "x-dynamo-worker-instance-id", read: (*reader).pin, privileged: true},
		{name: "x-dynamo-prefill-instance-id", read: func(r *reader) { r.x.Prefill.Worker = r.choice() }, privileged: true},
		{name: rankHeader, read: (*reader).rank, privileged: true},
		{name: engineRankHeader, read: (*reader).engineRank, privileged: true},
		{name: "x-dynamo-prefill-dp-rank", read: (*reader).prefillRank, privileged: true},
		{name: "x-cgn-allowed-worker-ids", read: (*reader).allowedHeader, privileged: true},
		{name: "x-dynamo-request-priority", read: (*reader).priority},
		{name: "x-dynamo-request-strict-priority", read: (*reader).strictPriority},
		{name: "x-cgn-priority", read: (*reader).strictPriority},
	}
	for _, f := range routerFields {
		if f.name == "moe_query" {
			continue
		}
		name := strings.TrimPrefix(strings.ReplaceAll(f.name, "_", "-"), "router-")
		all = append(all, field{strings.ToLower(routerPrefix) + name, f.read, true})
	}
	return all
}()

// otherHeaders are the headers without routerPrefix, in the spelling of net/http.
var otherHeaders = func() (all []string) {
	for _, h := range headers {
		if name := http.CanonicalHeaderKey(h.name); !strings.HasPrefix(name, routerPrefix) {
			all = append(all, name)
		}
	}
	return all
}()

// ReadHeaders reads the headers of a request that are about its routing into x, over what the body
// has said. ReadHeaders ignores other headers, and refuses unknown ones that begin with
// x-cgn-router-. The error is a *scan.Error.
func ReadHeaders(x *Ext, all iter.Seq2[[]byte, []byte]) error {
	r := reader{x: x, index: -1}
	seen := uint64(0)
	for name, value := range all {
		i := slices.IndexFunc(headers, func(f field) bool { return bytes.EqualFold(name, []byte(f.name)) })
		switch {
		case i >= 0 && seen&(1<<i) != 0:
			r.member = headers[i].name
			r.fail(0, scan.CodeValue, "is sent twice; send it once")
		case i >= 0:
			seen |= 1 << i
			r.readHeader(&headers[i], value)
		case hasPrefix(name, routerPrefix):
			r.unknown(0, bytes.ToLower(name), headers)
		}
		if r.err != nil {
			return r.err
		}
	}
	r.settleWeight()
	return nil
}

func hasPrefix(name []byte, prefix string) bool {
	return len(name) >= len(prefix) && bytes.EqualFold(name[:len(prefix)], []byte(prefix))
}

// readHeader reads the value of a header. A value is spelled as in JSON, but an id has no quotes.
func (r *reader) readHeader(f *field, value []byte) {
	if r.member, r.header = f.name, value; len(value) == 0 {
		r.fail(0, scan.CodeValue, "is empty; leave it out")
		return
	}
	if f.privileged && r.x.Privileged == "" {
		r.x.Privileged = f.name
	}
	r.c.Reset(value, 1)
	f.read(r)
	if r.c.End(); r.c.Failed() {
		r.fail(0, scan.CodeValue, "must be a number, or true or false, as JSON spells it")
	}
}

// headerID returns the header's value as a worker's id.
func (r *reader) headerID() string {
	r.c.Reset(nil, 1) // nothing is left to read
	return r.unquotedID(r.header)
}

// unquotedID returns id as a worker's id.
func (r *reader) unquotedID(id []byte) string {
	if len(id) > maxWorkerID {
		r.fail(0, scan.CodeTooLong,
			"is longer than "+strconv.Itoa(maxWorkerID)+" bytes; send a node's name or its number")
		return ""
	}
	return string(id)
}

// allowedHeader reads the set of workers that may answer, separated by commas.
func (r *reader) allowedHeader() {
	r.c.Reset(nil, 1) // nothing is left to read
	n := bytes.Count(r.header, []byte(",")) + 1
	if n > maxEntries {
		r.tooMany(0, maxEntries)
		return
	}
	all := make(Workers, 0, n)
	for id := range bytes.SplitSeq(r.header, []byte(",")) {
		r.index = len(all)
		if id = bytes.TrimSpace(id); len(id) == 0 {
			r.fail(0, scan.CodeValue, "is empty; name a worker or leave out the comma")
		}
		all = append(all, r.unquotedID(id))
		if r.err != nil {
			return
		}
	}
	r.index = -1
	r.allow(all)
}
