package s3

import (
	"bytes"
	"encoding/base64"
	"encoding/xml"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/kvcached/store"
)

const maxListed = 1000

// listing collects the smallest names of a bucket, at most limit+1.
type listing struct {
	namespace         string
	prefix, delimiter string
	after             string // only names after this one are listed
	startAfter        string // only keys after this one are listed
	limit             int
	names             []listed // sorted
}

// listed is a key, or a common prefix of keys up to a delimiter.
type listed struct {
	name     string
	common   bool
	size     int
	etag     string
	modified time.Time
}

// take looks at one block.
func (l *listing) take(i store.Info, started time.Time) {
	if i.Item.Namespace != l.namespace || i.Item.Key == nil {
		return
	}
	found, common := i.Item.Key, false
	if len(found) < len(l.prefix) || string(found[:len(l.prefix)]) != l.prefix ||
		string(found) <= l.startAfter && l.startAfter != "" {
		return
	}
	if l.delimiter != "" {
		if at := bytes.Index(found[len(l.prefix):], []byte(l.delimiter)); at >= 0 {
			found, common = found[:len(l.prefix)+at+len(l.delimiter)], true
		}
	}
	full := len(l.names) > l.limit
	if string(found) <= l.after && l.after != "" || full && string(found) >= l.names[l.limit].name {
		return // most blocks of a large bucket end here, without an allocation
	}
	name := string(found)
	at, there := slices.BinarySearchFunc(l.names, name, func(e listed, name string) int {
		return strings.Compare(e.name, name)
	})
	if there {
		return
	}
	if full {
		l.names = l.names[:l.limit]
	}
	entry := listed{name: name, common: common}
	if !common {
		a := decodeAttributes(i.Item.Attr)
		entry.size, entry.etag, entry.modified = i.Length, a.etag(i), a.lastModified(started)
	}
	l.names = slices.Insert(l.names, at, entry)
}

// scan visits every block, some twice, until visit returns false.
func (c *call) scan(visit func(store.Info) bool) error {
	stopped := false
	for cursor := uint64(0); ; {
		if err := c.r.Context().Err(); err != nil {
			return err
		}
		next, err := c.s.sink.Scan(c.r.Context(), cursor, func(i store.Info) bool {
			stopped = !visit(i)
			return !stopped
		})
		if err != nil || next == 0 || stopped {
			return err
		}
		cursor = next
	}
}

type listedObject struct {
	Key          string
	LastModified string
	ETag         string
	Size         int
	StorageClass string
}

type listedPrefix struct{ Prefix string }

type listResult struct {
	XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
	Name                  string
	Prefix                string
	Delimiter             string `xml:",omitempty"`
	MaxKeys               int
	EncodingType          string `xml:",omitempty"`
	KeyCount              *int   // v2
	ContinuationToken     string `xml:",omitempty"`
	NextContinuationToken string `xml:",omitempty"`
	StartAfter            string `xml:",omitempty"`
	Marker                *string
	NextMarker            string `xml:",omitempty"`
	IsTruncated           bool
	Contents              []listedObject
	CommonPrefixes        []listedPrefix
}

// list answers one page: of ListObjectsV2 with list-type=2, otherwise of ListObjects.
func (c *call) list() error {
	l, err := c.newListing()
	if err != nil {
		return err
	}
	if l.limit > 0 {
		err := c.scan(func(i store.Info) bool {
			l.take(i, c.s.started)
			return true
		})
		if err != nil {
			return err
		}
	}
	c.document(http.StatusOK, c.page(l))
	return nil
}

func (c *call) newListing() (*listing, error) {
	q := c.query
	namespace, err := namespaceOf(c.bucket, c.who.tenant)
	if err != nil {
		return nil, err
	}
	limit, err := q.number("max-keys", 0, 1<<31-1, maxListed)
	if err != nil {
		return nil, err
	}
	if e := q.get("encoding-type"); e != "" && e != "url" {
		return nil, refusal("InvalidArgument", "The parameter encoding-type must be url.")
	}
	l := &listing{namespace: namespace, prefix: q.get("prefix"), delimiter: q.get("delimiter"),
		limit: min(limit, maxListed)}
	switch q.get("list-type") {
	case "":
		l.after = q.get("marker")
		return l, nil
	case "2":
	default:
		return nil, refusal("InvalidArgument", "The parameter list-type must be 2.")
	}
	l.startAfter = q.get("start-after")
	if token, ok := q.find("continuation-token"); ok {
		name, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil || token == "" {
			return nil, refusal("InvalidArgument", "The parameter continuation-token is not one that this server "+
				"gave out.")
		}
		l.after = string(name)
	}
	return l, nil
}

// page makes the answer from a listing.
func (c *call) page(l *listing) listResult {
	q := c.query
	spell := func(s string) string { return s }
	if q.get("encoding-type") == "url" {
		spell = func(s string) string { return string(appendEncoded(nil, s, true)) }
	}
	more := len(l.names) > l.limit
	names := l.names[:min(len(l.names), l.limit)]
	r := listResult{Name: c.bucket, Prefix: spell(l.prefix), Delimiter: spell(l.delimiter), MaxKeys: l.limit,
		EncodingType: q.get("encoding-type"), IsTruncated: more}
	for _, n := range names {
		if n.common {
			r.CommonPrefixes = append(r.CommonPrefixes, listedPrefix{spell(n.name)})
			continue
		}
		r.Contents = append(r.Contents, listedObject{spell(n.name), xmlTime(n.modified), n.etag, n.size, "STANDARD"})
	}
	last := ""
	if more {
		last = names[len(names)-1].name
	}
	if q.get("list-type") != "2" {
		marker := spell(l.after)
		r.Marker, r.NextMarker = &marker, spell(last)
		return r
	}
	count := len(names)
	r.KeyCount, r.StartAfter, r.ContinuationToken = &count, spell(l.startAfter), q.get("continuation-token")
	if more {
		r.NextContinuationToken = base64.RawURLEncoding.EncodeToString([]byte(last))
	}
	return r
}

func xmlTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
