package s3

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// TestMinio stores objects with minio-go, which over http signs every chunk of a body, with and
// without trailers.
func TestMinio(t *testing.T) {
	_, name := bucket(t)
	at, err := url.Parse(os.Getenv("S3_ENDPOINT"))
	if err != nil {
		t.Fatal(err)
	}
	for _, trailers := range []bool{false, true} {
		m, err := minio.New(at.Host, &minio.Options{
			Creds:  credentials.NewStaticV4(env("S3_ACCESS_KEY", "test"), env("S3_SECRET_KEY", "test"), ""),
			Secure: at.Scheme == "https",
			Region: "us-east-1", TrailingHeaders: trailers, BucketLookup: minio.BucketLookupPath,
			Transport: browser(t).Transport,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int{0, 1000, 3 << 20, 40 << 20} {
			key := fmt.Sprintf("%v/%d %x", trailers, n, rand.Uint32())
			info, err := m.PutObject(t.Context(), *name, key, bytes.NewReader(data(n)), int64(n),
				minio.PutObjectOptions{UserMetadata: map[string]string{"layer": "3"}})
			if err != nil || info.Size != int64(n) {
				t.Fatal(info, err)
			}
			o, err := m.GetObject(t.Context(), *name, key, minio.GetObjectOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(o)
			if err != nil || !bytes.Equal(got, data(n)) {
				t.Errorf("%d bytes: %d came, %v", n, len(got), err)
			}
			stat, err := m.StatObject(t.Context(), *name, key, minio.StatObjectOptions{})
			if err != nil || stat.ETag != info.ETag || stat.UserMetadata["Layer"]+stat.UserMetadata["layer"] != "3" {
				t.Error(stat, err)
			}
		}
	}
}
