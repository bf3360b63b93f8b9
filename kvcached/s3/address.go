package s3

import (
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

// target names the subject of a request: the service, a bucket, or an object.
type target struct {
	bucket string
	key    string // empty: the bucket, or without one the service
}

// bucketless is the bucket of keys that come without one. It does not depend on the Host header. So
// a key is the same object under every name of the server, and on every server of its fleet.
const bucketless = "default"

// locate finds bucket and key from the Host header and the path as it was sent. It looks at whether
// Host is below one of domains, and never at the form of its name:
//   - Below a domain, the bucket stands before the domain, and the path is the key.
//   - Otherwise the path is /bucket/key. A path of one segment is a key in the bucket "default" if
//     it is a block address or has the form of LMCache's keys, which hold @.
//
// A Host of several labels outside of the domains, which is no address, may be <bucket>.<server>.
// locate refuses bare keys there, because two buckets would become one. It refuses everything else,
// too.
func locate(host, rawPath string, domains []string) (target, error) {
	host = hostName(host)
	path := strings.TrimPrefix(rawPath, "/")
	bucket, inHost, known := below(host, domains)
	if inHost {
		return makeTarget(bucket, path)
	}
	first, rest, more := strings.Cut(path, "/")
	if path == "" {
		return target{}, nil
	}
	name, err := url.PathUnescape(first)
	if err != nil {
		return target{}, refusal("InvalidArgument", "The path is not URL-encoded.")
	}
	switch bare := !more && (strings.Contains(name, "@") || block.IsAddress([]byte(name))); {
	case isBucketName(name):
		return makeTarget(name, rest)
	case bare && known:
		return makeTarget(bucketless, path)
	case !known:
		return target{}, refusal("InvalidBucketName",
			"%.64q is no bucket's name, and %.253q is not known as a name of this server. "+
				"If it is one, or a bucket's name stands before one, add that name to s3.domains.", name, host)
	}
	return target{}, refusal("InvalidBucketName", "%.64q is no bucket's name: it needs 3 to 63 of a-z, 0-9, - and . "+
		"The path is /<bucket>/<key>, or /<key> when the Host header is <bucket>.<name in s3.domains>.", name)
}

func makeTarget(bucket, rawKey string) (target, error) {
	key, err := url.PathUnescape(rawKey)
	if err != nil {
		return target{}, refusal("InvalidArgument", "The path is not URL-encoded.")
	}
	if len(key) > block.MaxKey && !block.IsAddress([]byte(key)) {
		return target{}, refusal("KeyTooLongError", "A key has at most %d bytes.", block.MaxKey)
	}
	if !isBucketName(bucket) {
		return target{}, refusal("InvalidBucketName", "The Host header names the bucket %.64q: a name needs 3 to 63 "+
			"of a-z, 0-9, - and .", bucket)
	}
	return target{bucket: bucket, key: key}, nil
}

// below tells whether host is a bucket's name before one of the domains. Otherwise it tells whether
// host is the server itself: a domain, an address, or a name of one label. Of nested domains the
// longest decides.
func below(host string, domains []string) (bucket string, inHost, known bool) {
	longest := -1
	for _, d := range append([]string{"localhost"}, domains...) {
		if host == d {
			return "", false, true
		}
		if b, ok := strings.CutSuffix(host, "."+d); ok && len(d) > longest {
			bucket, longest = b, len(d)
		}
	}
	if longest >= 0 {
		return bucket, true, true
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return "", false, true
	}
	return "", false, !strings.Contains(host, ".")
}

// hostName is a Host header without its port, in lower case.
func hostName(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// isBucketName tells whether S3 would allow a bucket of this name.
func isBucketName(s string) bool {
	if len(s) < 3 || len(s) > 63 || !isAlnum(s[0]) || !isAlnum(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlnum(c) && c != '-' && c != '.' {
			return false
		}
	}
	return true
}

func isAlnum(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

// space begins the Space of the namespaces of this server.
const space = "s3."

// namespaceOf is the canonical text of the namespace of a tenant's bucket.
func namespaceOf(bucket, tenant string) (string, error) {
	n := block.Namespace{Space: space + bucket, Tenant: tenant}
	if err := n.Check(); err != nil {
		return "", refusal("InvalidBucketName", "The bucket's name is too long.")
	}
	return n.String(), nil
}

// itemOf returns the block of a key. A block address names itself; the item has the parent and the
// names of the address's tail. Every other key belongs to the bucket.
func itemOf(bucket, key, tenant string) (store.Item, error) {
	if name := []byte(key); block.IsAddress(name) {
		namespace, a, tail, err := block.ParseText(name)
		if err != nil {
			return store.Item{}, err
		}
		return store.Item{Addr: a, Namespace: namespace, Parent: tail.Parent, Attr: block.AppendNames(nil, tail.Names)},
			nil
	}
	namespace, err := namespaceOf(bucket, tenant)
	if err != nil {
		return store.Item{}, err
	}
	return store.Item{Addr: block.OfKey(block.IDOf(namespace), []byte(key)), Namespace: namespace, Key: []byte(key)},
		nil
}
