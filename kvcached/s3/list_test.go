package s3

import (
	"encoding/xml"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// walk lists a bucket page by page and answers the names in order.
func (b *bed) walk(query url.Values) (keys, prefixes []string, pages int) {
	b.t.Helper()
	for {
		r := b.want(b.do("GET", "/?"+query.Encode(), ""), 200)
		var page listResult
		if err := xml.Unmarshal([]byte(r.body), &page); err != nil {
			b.t.Fatal(err)
		}
		pages++
		for _, o := range page.Contents {
			key, err := url.PathUnescape(o.Key)
			if err != nil {
				b.t.Fatal(err)
			}
			keys = append(keys, key)
		}
		for _, p := range page.CommonPrefixes {
			prefixes = append(prefixes, p.Prefix)
		}
		if page.KeyCount != nil && *page.KeyCount != len(page.Contents)+len(page.CommonPrefixes) {
			b.t.Error("KeyCount", *page.KeyCount)
		}
		if !page.IsTruncated {
			return keys, prefixes, pages
		}
		if query.Get("list-type") == "2" {
			query.Set("continuation-token", page.NextContinuationToken)
		} else {
			query.Set("marker", page.NextMarker)
		}
	}
}

func TestList(t *testing.T) {
	b := serve(t, Options{})
	for _, k := range []string{"a/1", "a/2", "b/1", "c", "d//e", "mødel@1", "z z+&<"} {
		b.want(b.do("PUT", "/"+url.PathEscape(k), k), 200)
	}
	b.want(b.do("PUT", "/x", "", "Host", "other.localhost"), 200)
	for _, c := range []struct{ query, keys, prefixes string }{
		{"list-type=2&max-keys=2", "a/1,a/2,b/1,c,d//e,mødel@1,z z+&<", ""},
		{"max-keys=3", "a/1,a/2,b/1,c,d//e,mødel@1,z z+&<", ""},
		{"list-type=2&encoding-type=url", "a/1,a/2,b/1,c,d//e,mødel@1,z z+&<", ""},
		{"list-type=2&delimiter=/&max-keys=1", "c,mødel@1,z z+&<", "a/,b/,d/"},
		{"delimiter=/&max-keys=2", "c,mødel@1,z z+&<", "a/,b/,d/"},
		{"list-type=2&prefix=a/&delimiter=/", "a/1,a/2", ""},
		{"list-type=2&prefix=d/&delimiter=/", "", "d//"},
		{"list-type=2&start-after=a/1&max-keys=1", "a/2,b/1,c,d//e,mødel@1,z z+&<", ""},
		{"list-type=2&start-after=a/1&delimiter=/", "c,mødel@1,z z+&<", "a/,b/,d/"},
		{"list-type=2&prefix=none", "", ""},
		{"list-type=2&max-keys=0", "", ""},
	} {
		q, _ := url.ParseQuery(c.query)
		keys, prefixes, _ := b.walk(q)
		if strings.Join(keys, ",") != c.keys || strings.Join(prefixes, ",") != c.prefixes {
			t.Errorf("%s: %q %q", c.query, keys, prefixes)
		}
	}
	b.want(b.do("GET", "/?list-type=2&continuation-token=%20", ""), 400, "continuation-token")
	b.want(b.do("GET", "/", "", "Host", "127.0.0.1"), 200, "<Name>kvb</Name>", "<Name>other</Name>")
	b.want(b.do("DELETE", "/", ""), 409, "BucketNotEmpty")
	b.want(b.do("DELETE", "/", "", "Host", "empty.localhost"), 204)
	b.want(b.do("HEAD", "/", ""), 200)
	b.want(b.do("PUT", "/fresh", "", "Host", "127.0.0.1"), 200)
	b.want(b.do("GET", "/?location", ""), 200, "LocationConstraint")
	done := b.want(b.do("POST", "/?delete",
		"<Delete><Object><Key>c</Key></Object><Object><Key>none</Key></Object><Object><Key>cgn:x</Key></Object></Delete>"), 200)
	if strings.Count(done.body, "<Deleted>") != 2 || !strings.Contains(done.body, "<Code>InvalidArgument</Code>") {
		t.Error(done.body)
	}
	b.want(b.do("GET", "/c", ""), 404)
	b.want(b.do("POST", "/?delete", "<Delete>"), 400, "MalformedXML")
}

// TestListAll compares pages with a sorted list of everything.
func TestListAll(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	b := serve(t, Options{})
	var want []string
	for i := range 300 {
		k := fmt.Sprintf("%c/%c/%d", 'a'+random.IntN(4), 'a'+random.IntN(20), i)
		want = append(want, k)
		b.want(b.do("PUT", "/"+k, ""), 200)
	}
	slices.Sort(want)
	size := 1 + random.IntN(40)
	keys, _, pages := b.walk(url.Values{"list-type": {"2"}, "max-keys": {fmt.Sprint(size)}})
	if !slices.Equal(keys, want) || pages != (len(want)+size-1)/size {
		t.Errorf("%d keys on %d pages of %d", len(keys), pages, size)
	}
	groups := map[string]bool{}
	for _, k := range want {
		if strings.HasPrefix(k, "b/") {
			groups[k[:4]] = true
		}
	}
	_, prefixes, _ := b.walk(url.Values{"list-type": {"2"}, "max-keys": {"3"}, "delimiter": {"/"}, "prefix": {"b/"}})
	if len(prefixes) != len(groups) || !slices.IsSorted(prefixes) {
		t.Errorf("%v, want %d", prefixes, len(groups))
	}
}
