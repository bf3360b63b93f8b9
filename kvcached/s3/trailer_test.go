package s3

import (
	"crypto/sha256"
	"encoding/base64"
	"testing"
)

// TestTrailerIsKept puts an object whose checksum comes in a trailer, and asks for the checksum.
func TestTrailerIsKept(t *testing.T) {
	b := serve(t, Options{Sink: arena(t, 4<<20)})
	sum := sha256.Sum256([]byte("hello"))
	text := base64.StdEncoding.EncodeToString(sum[:])
	b.want(b.do("PUT", "/k", "5\r\nhello\r\n0\r\nx-amz-checksum-sha256:"+text+"\r\n\r\n",
		headerPayload, streamingUnsignedTrailer, headerTrailer, "x-amz-checksum-sha256", "x-amz-decoded-content-length",
		"5"), 200)
	h := b.want(b.do("HEAD", "/k", "", "x-amz-checksum-mode", "ENABLED"), 200)
	if got := h.Header.Get("x-amz-checksum-sha256"); got != text {
		t.Errorf("%q, want %q", got, text)
	}
}
