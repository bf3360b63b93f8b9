package s3

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/store"
)

// apiError is an error answer.
type apiError struct {
	status  int
	code    string
	message string
	header  [2]string // one more header, if named
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

// statuses are this server's error codes with their HTTP statuses.
var statuses = map[string]int{
	"AccessDenied":                 http.StatusForbidden,
	"AuthorizationHeaderMalformed": http.StatusBadRequest,
	"BadDigest":                    http.StatusBadRequest,
	"BucketNotEmpty":               http.StatusConflict,
	"EntityTooLarge":               http.StatusBadRequest,
	"IncompleteBody":               http.StatusBadRequest,
	"InternalError":                http.StatusInternalServerError,
	"InsufficientCapacity":         http.StatusInsufficientStorage,
	"InvalidAccessKeyId":           http.StatusForbidden,
	"InvalidArgument":              http.StatusBadRequest,
	"InvalidBucketName":            http.StatusBadRequest,
	"InvalidDigest":                http.StatusBadRequest,
	"InvalidPart":                  http.StatusBadRequest,
	"InvalidPartNumber":            http.StatusRequestedRangeNotSatisfiable,
	"InvalidPartOrder":             http.StatusBadRequest,
	"InvalidRange":                 http.StatusRequestedRangeNotSatisfiable,
	"InvalidRequest":               http.StatusBadRequest,
	"KeyTooLongError":              http.StatusBadRequest,
	"MalformedXML":                 http.StatusBadRequest,
	"MetadataTooLarge":             http.StatusBadRequest,
	"MethodNotAllowed":             http.StatusMethodNotAllowed,
	"MissingContentLength":         http.StatusLengthRequired,
	"NoSuchKey":                    http.StatusNotFound,
	"NoSuchUpload":                 http.StatusNotFound,
	"NotImplemented":               http.StatusNotImplemented,
	"OperationAborted":             http.StatusConflict,
	"PreconditionFailed":           http.StatusPreconditionFailed,
	"QuotaExceeded":                http.StatusForbidden,
	"RequestTimeout":               http.StatusBadRequest,
	"RequestTimeTooSkewed":         http.StatusForbidden,
	"ServiceUnavailable":           http.StatusServiceUnavailable,
	"TooManyBuckets":               http.StatusBadRequest,
	"SignatureDoesNotMatch":        http.StatusForbidden,
	"SlowDown":                     http.StatusServiceUnavailable,
	"XAmzContentSHA256Mismatch":    http.StatusBadRequest,
}

func refusal(code, format string, args ...any) *apiError {
	return &apiError{status: cmp.Or(statuses[code], http.StatusInternalServerError), code: code,
		message: fmt.Sprintf(format, args...)}
}

// asAPI turns an error into an answer. Unknown errors become InternalError.
func asAPI(err error) *apiError {
	var e *apiError
	var size *store.SizeError
	var disk *store.DiskError
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &size):
		return refusal("EntityTooLarge", "%s", strings.TrimPrefix(size.Error(), "store: too large: "))
	case errors.As(err, &disk) && disk.Full():
		return refusal("InsufficientCapacity", "%s", disk.Public())
	case errors.Is(err, store.ErrMiss):
		return refusal("NoSuchKey", "The specified key does not exist.")
	case errors.Is(err, store.ErrFull):
		return refusal("SlowDown", "All of the memory is in use. Try again later.")
	case errors.Is(err, store.ErrTooLarge):
		return tooLarge()
	case errors.Is(err, store.ErrQuota):
		return refusal("QuotaExceeded", "The quota of this bucket is used up.")
	case errors.Is(err, store.ErrExists):
		return refusal("PreconditionFailed", "The key exists, and If-None-Match said that it must not.")
	case errors.Is(err, store.ErrNotDurable):
		return refusal("InvalidRequest", "Nothing can be made durable here: no SSD tier outlives the server.")
	case errors.Is(err, store.ErrClosed):
		return refusal("ServiceUnavailable", "The server is going down.")
	case errors.Is(err, ram.ErrNamespaces):
		return refusal("TooManyBuckets", "There are as many buckets and other namespaces as this server keeps.")
	case errors.Is(err, block.ErrAddress), errors.Is(err, block.ErrNamespace):
		return refusal("InvalidArgument", "The key is meant as a block address: %v", err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return refusal("ServiceUnavailable", "The request took too long. Try again.")
	}
	return refusal("InternalError", "We encountered an internal error. Please try again.")
}

func tooLarge() *apiError {
	return refusal("EntityTooLarge", "An object has at most %d bytes here.", MaxObject)
}

// errorDocument is the body of a refusal.
type errorDocument struct {
	XMLName   xml.Name `xml:"Error"`
	Code      string
	Message   string
	Resource  string
	RequestID string `xml:"RequestId"`
	HostID    string `xml:"HostId"`
}

// refuse answers err, if nothing was answered before. net/http then reads up to 256 KiB of the rest
// of the body. The rest must come within the timeout, and the client must take the answer within
// another timeout. The rest of a body that was too slow is not read.
func (c *call) refuse(err *apiError) {
	defer func() {
		control, now := http.NewResponseController(c.w), time.Now()
		_ = control.SetReadDeadline(now.Add(c.s.timeout))
		_ = control.SetWriteDeadline(now.Add(2 * c.s.timeout))
	}()
	if err.code == "RequestTimeout" {
		c.w.Header().Set("Connection", "close")
	}
	if err.header[0] != "" {
		c.w.Header().Set(err.header[0], err.header[1])
	}
	if c.r.Method == http.MethodHead {
		c.w.Header().Set("Content-Length", "0")
		c.status(err.status)
		return
	}
	c.document(err.status, errorDocument{Code: err.code, Message: err.message, Resource: c.r.URL.Path, RequestID: c.id,
		HostID: c.id})
}
