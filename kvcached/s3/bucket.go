package s3

import (
	"encoding/xml"
	"net/http"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

const (
	maxBuckets    = 1000    // in an answer
	maxBucketText = 8 << 10 // bytes of a CreateBucketConfiguration
)

type listedBucket struct {
	Name         string
	CreationDate string
}

type bucketsResult struct {
	XMLName xml.Name       `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListAllMyBucketsResult"`
	Owner   owner          `xml:"Owner"`
	Buckets []listedBucket `xml:"Buckets>Bucket"`
}

type owner struct{ ID, DisplayName string }

// listBuckets names at most 1,000 buckets in which the caller has objects. It walks over all
// blocks.
func (c *call) listBuckets() error {
	seen := map[string]bool{}
	err := c.scan(func(i store.Info) bool {
		if !block.OfKeys(i.Item.Namespace) {
			return true
		}
		n, err := block.ParseNamespace(i.Item.Namespace)
		bucket, of := strings.CutPrefix(n.Space, space)
		if err == nil && of && n.Tenant == c.who.tenant && len(seen) < maxBuckets {
			seen[bucket] = true
		}
		return true
	})
	if err != nil {
		return err
	}
	result := bucketsResult{Owner: owner{ID: "cgn-kvcached", DisplayName: "cgn-kvcached"}}
	for name := range seen {
		result.Buckets = append(result.Buckets, listedBucket{name, xmlTime(c.s.started)})
	}
	slices.SortFunc(result.Buckets, func(a, b listedBucket) int { return strings.Compare(a.Name, b.Name) })
	c.document(http.StatusOK, result)
	return nil
}

// createBucket changes nothing, because buckets need not be created. A body that is no
// configuration is an object, and its bucket was not recognised. createBucket refuses the object,
// so that the client notices.
func (c *call) createBucket() error {
	if c.r.ContentLength > maxBucketText {
		return refusal("MalformedXML", "This is a request to create the bucket %q; to put an object, name it too, as "+
			"/<bucket>/<key>.", c.bucket)
	}
	if c.r.ContentLength > 0 {
		release, err := c.s.body()
		if err != nil {
			return err
		}
		defer release()
		var configuration struct {
			XMLName xml.Name `xml:"CreateBucketConfiguration"`
		}
		malformed := refusal("MalformedXML", "This is a request to create the bucket %q, and the body is no "+
			"CreateBucketConfiguration.", c.bucket)
		if err := c.readSmall(maxBucketText, true, &configuration, malformed); err != nil {
			return err
		}
	}
	if _, err := namespaceOf(c.bucket, c.who.tenant); err != nil {
		return err
	}
	c.w.Header().Set("Location", "/"+c.bucket)
	c.w.Header().Set("Content-Length", "0")
	c.status(http.StatusOK)
	return nil
}

// deleteBucket succeeds if the bucket is empty.
func (c *call) deleteBucket() error {
	namespace, err := namespaceOf(c.bucket, c.who.tenant)
	if err != nil {
		return err
	}
	empty := true
	err = c.scan(func(i store.Info) bool {
		empty = empty && i.Item.Namespace != namespace
		return empty
	})
	if err != nil {
		return err
	}
	if !empty {
		return refusal("BucketNotEmpty", "The bucket you tried to delete is not empty.")
	}
	c.status(http.StatusNoContent)
	return nil
}

type locationResult struct {
	XMLName xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ LocationConstraint"`
}

// region is the only region. A bucket's location names it by an empty string. Signatures for any
// region are accepted.
const region = "us-east-1"

func (c *call) bucketLocation() error {
	c.document(http.StatusOK, locationResult{})
	return nil
}
