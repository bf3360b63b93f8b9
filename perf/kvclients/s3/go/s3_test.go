// Package s3 tests aws-sdk-go-v2 against an S3 endpoint: S3_ENDPOINT, S3_ACCESS_KEY, S3_SECRET_KEY;
// with https, S3_CA_FILE.
package s3

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/feature/s3/manager"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func client(t *testing.T, secret string) *s3.Client {
	t.Helper()
	endpoint := os.Getenv("S3_ENDPOINT")
	if endpoint == "" {
		t.Skip("S3_ENDPOINT is not set: run perf/kvclients/s3/run.sh ENDPOINT")
	}
	return s3.New(s3.Options{
		HTTPClient: browser(t), Region: "us-east-1", BaseEndpoint: &endpoint, UsePathStyle: true, RetryMaxAttempts: 1,
		Credentials: credentials.NewStaticCredentialsProvider(env("S3_ACCESS_KEY", "test"), secret, ""),
	})
}

// browser returns an HTTP client that trusts S3_CA_FILE, if set.
func browser(t *testing.T) *http.Client {
	t.Helper()
	path := os.Getenv("S3_CA_FILE")
	if path == "" {
		return &http.Client{Transport: onlyRead{http.DefaultTransport}}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return &http.Client{Transport: onlyRead{&http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}}
}

// onlyRead hides the method WriteTo of a request's body. WriteTo of smithy-go 1.28.8 wrongly
// returns io.EOF after Close. net/http may call WriteTo once more after the last byte was sent, and
// then closes the connection while the answer is being read. Retries would hide this mistake, and
// also hide mistakes of the server.
type onlyRead struct{ http.RoundTripper }

func (o onlyRead) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil && r.Body != http.NoBody {
		r = r.Clone(r.Context())
		r.Body = struct{ io.ReadCloser }{r.Body}
	}
	return o.RoundTripper.RoundTrip(r)
}

// bucket makes a bucket that is emptied at the end.
func bucket(t *testing.T) (*s3.Client, *string) {
	t.Helper()
	c := client(t, env("S3_SECRET_KEY", "test"))
	name := aws.String(fmt.Sprintf("go%08x", rand.Uint32()))
	if _, err := c.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: name}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pages := s3.NewListObjectsV2Paginator(c, &s3.ListObjectsV2Input{Bucket: name})
		for pages.HasMorePages() {
			page, err := pages.NextPage(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			var ids []types.ObjectIdentifier
			for _, o := range page.Contents {
				ids = append(ids, types.ObjectIdentifier{Key: o.Key})
			}
			if len(ids) == 0 {
				break
			}
			out, err := c.DeleteObjects(context.Background(),
				&s3.DeleteObjectsInput{Bucket: name, Delete: &types.Delete{Objects: ids}})
			if err != nil || len(out.Deleted) != len(ids) {
				t.Fatal(out, err)
			}
		}
		if _, err := c.DeleteBucket(context.Background(), &s3.DeleteBucketInput{Bucket: name}); err != nil {
			t.Error(err)
		}
	})
	return c, name
}

func data(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)})
	_, _ = r.Read(b)
	return b
}

func get(t *testing.T, c *s3.Client, in *s3.GetObjectInput) (*s3.GetObjectOutput, []byte) {
	t.Helper()
	out, err := c.GetObject(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Body.Close() }()
	b, err := io.ReadAll(out.Body)
	if err != nil {
		t.Fatal(err)
	}
	return out, b
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	var e smithy.APIError
	if !errors.As(err, &e) || e.ErrorCode() != code {
		t.Errorf("%v, want %s", err, code)
	}
}

func TestRoundTrip(t *testing.T) {
	c, name := bucket(t)
	for _, n := range []int{0, 1, 1 << 20, 20 << 20} {
		key := aws.String("meta/Llama@1@0 +é")
		put, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: name, Key: key, Body: bytes.NewReader(data(n)),
			Metadata: map[string]string{"layer": "3"}})
		if err != nil {
			t.Fatal(err)
		}
		out, body := get(t, c, &s3.GetObjectInput{Bucket: name, Key: key, ChecksumMode: types.ChecksumModeEnabled})
		if !bytes.Equal(body, data(n)) || *out.ETag != *put.ETag || out.Metadata["layer"] != "3" {
			t.Errorf("%d bytes: %d came, %s %v", n, len(body), *out.ETag, out.Metadata)
		}
		head, err := c.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: name, Key: key})
		if err != nil || *head.ContentLength != int64(n) {
			t.Error(head, err)
		}
	}
	_, err := c.GetObject(t.Context(), &s3.GetObjectInput{Bucket: name, Key: aws.String("none")})
	wantCode(t, err, "NoSuchKey")
	_, err = c.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: name, Key: aws.String("none")})
	wantCode(t, err, "NotFound")
	out, body := get(t, c, &s3.GetObjectInput{Bucket: name, Key: aws.String("meta/Llama@1@0 +é"),
		Range: aws.String("bytes=5-9")})
	if !bytes.Equal(body, data(20 << 20)[5:10]) || *out.ContentRange != "bytes 5-9/20971520" {
		t.Error(*out.ContentRange)
	}
}

func TestChecksums(t *testing.T) {
	c, name := bucket(t)
	for _, a := range types.ChecksumAlgorithm("").Values() {
		if !slices.Contains([]string{"CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"}, string(a)) {
			continue
		}
		_, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: name, Key: aws.String("k"),
			Body: bytes.NewReader(data(300000)), ChecksumAlgorithm: a})
		if err != nil {
			t.Errorf("%s: %v", a, err)
			continue
		}
		if _, body := get(t, c, &s3.GetObjectInput{Bucket: name, Key: aws.String("k"),
			ChecksumMode: types.ChecksumModeEnabled}); !bytes.Equal(body, data(300000)) {
			t.Errorf("%s: other bytes", a)
		}
	}
}

// TestManager uploads and downloads with the older transfer manager.
func TestManager(t *testing.T) {
	c, name := bucket(t)
	body := data(50 << 20)
	up := manager.NewUploader(c, func(u *manager.Uploader) { u.PartSize = 8 << 20 })
	// A reader without Seek leads to an unknown number of parts.
	if _, err := up.Upload(t.Context(), &s3.PutObjectInput{Bucket: name, Key: aws.String("big"),
		Body: struct{ io.Reader }{bytes.NewReader(body)}}); err != nil {
		t.Fatal(err)
	}
	into := manager.NewWriteAtBuffer(nil)
	n, err := manager.NewDownloader(c).Download(t.Context(), into,
		&s3.GetObjectInput{Bucket: name, Key: aws.String("big")})
	if err != nil || n != int64(len(body)) || !bytes.Equal(into.Bytes(), body) {
		t.Error(n, err)
	}
}

// TestTransferManager does the same with the newer transfer manager, by parts and by ranges.
func TestTransferManager(t *testing.T) {
	c, name := bucket(t)
	body := data(40 << 20)
	for _, kind := range []string{"part", "range"} {
		m := transfermanager.New(c, func(o *transfermanager.Options) {
			o.PartSizeBytes = 8 << 20
			if kind == "range" {
				o.GetObjectType = "RANGE"
			}
		})
		if _, err := m.UploadObject(t.Context(), &transfermanager.UploadObjectInput{Bucket: name,
			Key: aws.String("big"), Body: bytes.NewReader(body)}); err != nil {
			t.Fatal(err)
		}
		out, err := m.GetObject(t.Context(), &transfermanager.GetObjectInput{Bucket: name, Key: aws.String("big")})
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(out.Body)
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%s: %d bytes, %v", kind, len(got), err)
		}
	}
}

func TestPaginator(t *testing.T) {
	c, name := bucket(t)
	var want []string
	for i := range 250 {
		key := fmt.Sprintf("%d/%d", i%5, i)
		want = append(want, key)
		if _, err := c.PutObject(t.Context(),
			&s3.PutObjectInput{Bucket: name, Key: &key, Body: strings.NewReader("")}); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(want)
	var got []string
	pages := s3.NewListObjectsV2Paginator(c, &s3.ListObjectsV2Input{Bucket: name, MaxKeys: aws.Int32(40)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Contents {
			got = append(got, *o.Key)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d keys of %d", len(got), len(want))
	}
}

func TestWrongSecret(t *testing.T) {
	if env("S3_SECRET_KEY", "test") == "test" {
		t.Skip("the server has no keys")
	}
	_, err := client(t, "wrong").ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: aws.String("some")})
	wantCode(t, err, "SignatureDoesNotMatch")
}
