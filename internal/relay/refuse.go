package relay

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"

	"github.com/valyala/fasthttp"
)

// HangUp closes the connection of ctx when the handler has returned, without sending anything.
// HangUp is for a client that has left.
func HangUp(ctx *fasthttp.RequestCtx) {
	ctx.Response.Reset()
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(func(net.Conn) {})
}

// RefusePlain answers a client that uses plain HTTP on a TLS port, with status and a JSON body. err
// is the error of reading from c, a TLS connection. RefusePlain returns false and writes nothing
// for other errors.
func RefusePlain(c net.Conn, err error, status int, body []byte) bool {
	var record tls.RecordHeaderError
	if !errors.As(err, &record) || record.Conn == nil || !startsHTTP(record.RecordHeader[:]) {
		return false
	}
	head := fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: "+
		"%d\r\n\r\n",
		status, http.StatusText(status), len(body))
	io.WriteString(record.Conn, head+string(body))
	Linger(c)
	return true
}

// startsHTTP tells whether the first bytes of a connection look like a request line.
func startsHTTP(b []byte) bool {
	return slices.Contains([]string{"GET /", "HEAD ", "POST ", "PUT /", "DELET", "OPTIO", "PATCH"}, string(b))
}
