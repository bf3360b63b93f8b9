package kvabuse

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/kv/client"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

var (
	errMiss = errors.New("miss")
	errFull = errors.New("the daemon's memory is in use")
)

// way is a client of one protocol. Only one goroutine at a time may use a way.
type way interface {
	get(ctx context.Context, s *subject) ([]byte, error) // fails with errMiss if there is no such subject
	put(ctx context.Context, s *subject, payload []byte, o putOptions) error
	del(ctx context.Context, s *subject) error
}

type putOptions struct {
	durable bool  // not in RESP, which has no option for it
	expires int64 // Unix ms; not in S3
}

// ways holds a worker's clients.
type ways struct {
	by     map[string]way
	closes []func()
}

func (w *ways) close() {
	for _, c := range w.closes {
		c()
	}
}

// connect opens one client of each protocol.
func (d *daemon) connect(t *testing.T) *ways {
	t.Helper()
	w := &ways{by: map[string]way{}}
	r, err := dialRESP(d.resp)
	if err != nil {
		t.Fatal(d.process.Explain(err))
	}
	local, err := client.Options{Name: "kvabuse", Sockets: 1}.Dial(t.Context(), d.lease)
	if err != nil {
		t.Fatal(d.process.Explain(err))
	}
	conn, err := grpc.NewClient("unix://"+d.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	objects := &s3Way{base: "http://" + d.s3 + "/abuse/",
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}, Timeout: soon}}
	w.by["resp"], w.by["lease"], w.by["grpc"], w.by["s3"] = r, leaseWay{local}, grpcWay{pb.NewKvClient(conn)}, objects
	w.closes = []func(){func() { _ = r.conn.Close() }, func() { _ = local.Close() }, func() { _ = conn.Close() },
		objects.http.CloseIdleConnections}
	return w
}

// respWay is a client of RESP2.
type respWay struct {
	conn net.Conn
	in   *bufio.Reader
}

func dialRESP(address string) (*respWay, error) {
	c, err := net.DialTimeout("tcp", address, soon)
	if err != nil {
		return nil, err
	}
	return &respWay{c, bufio.NewReaderSize(c, 32<<10)}, nil
}

// do sends a command and returns its reply, which must not be an array. The result is the content
// of a bulk string, or a line without its first byte.
func (r *respWay) do(args ...[]byte) ([]byte, error) {
	_ = r.conn.SetDeadline(time.Now().Add(soon))
	head := fmt.Appendf(nil, "*%d\r\n", len(args))
	parts := net.Buffers{}
	for _, a := range args {
		parts = append(parts, fmt.Appendf(head, "$%d\r\n", len(a)), a)
		head = []byte("\r\n")
	}
	parts = append(parts, head)
	if _, err := parts.WriteTo(r.conn); err != nil {
		return nil, err
	}
	return r.reply()
}

func (r *respWay) reply() ([]byte, error) {
	line, err := r.in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimRight(line, "\r\n")
	switch {
	case line == "$-1":
		return nil, errMiss
	case strings.HasPrefix(line, "-OOM"):
		return nil, fmt.Errorf("%w: %s", errFull, line)
	case strings.HasPrefix(line, "-"):
		return nil, errors.New(line[1:])
	case !strings.HasPrefix(line, "$"):
		return []byte(line[1:]), nil
	}
	n, err := strconv.Atoi(line[1:])
	if err != nil {
		return nil, err
	}
	b := make([]byte, n+2)
	if _, err := io.ReadFull(r.in, b); err != nil {
		return nil, err
	}
	return b[:n], nil
}

func (r *respWay) get(_ context.Context, s *subject) ([]byte, error) {
	return r.do([]byte("GET"), []byte(s.key))
}

func (r *respWay) put(_ context.Context, s *subject, payload []byte, o putOptions) error {
	args := [][]byte{[]byte("SET"), []byte(s.key), payload}
	if o.expires != 0 {
		args = append(args, []byte("PXAT"), strconv.AppendInt(nil, o.expires, 10))
	}
	_, err := r.do(args...)
	return err
}

func (r *respWay) del(_ context.Context, s *subject) error {
	_, err := r.do([]byte("DEL"), []byte(s.key))
	return err
}

// leaseWay is a client of the lease socket.
type leaseWay struct{ *client.Client }

func (l leaseWay) get(ctx context.Context, s *subject) (b []byte, err error) {
	err = l.Read(ctx, s.addr, func(payload []byte) error {
		b = bytes.Clone(payload)
		return nil
	})
	if errors.Is(err, client.ErrMiss) {
		err = errMiss
	}
	return b, err
}

func (l leaseWay) put(ctx context.Context, s *subject, payload []byte, o putOptions) error {
	it := client.Item{Addr: s.addr, Namespace: s.namespace, Durable: o.durable}
	if o.expires != 0 {
		it.Expires = time.UnixMilli(o.expires)
	}
	_, err := l.Put(ctx, it, payload)
	if errors.Is(err, client.ErrFull) {
		err = fmt.Errorf("%w: %w", errFull, err)
	}
	return err
}

func (l leaseWay) del(ctx context.Context, s *subject) error {
	_, err := l.Delete(ctx, s.addr)
	return err
}

// grpcWay is a client of cognitora.v1.Kv.
type grpcWay struct{ pb.KvClient }

func (g grpcWay) get(ctx context.Context, s *subject) ([]byte, error) {
	stream, err := g.Get(ctx, &pb.GetRequest{Namespace: s.namespace, Layer: s.addr.Layer, Digest: s.addr.Digest[:]})
	if err != nil {
		return nil, err
	}
	var b []byte
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return b, nil
		case status.Code(err) == codes.NotFound:
			return nil, errMiss
		case err != nil:
			return nil, err
		}
		b = append(b, m.Data...)
	}
}

func (g grpcWay) put(ctx context.Context, s *subject, payload []byte, o putOptions) error {
	stream, err := g.Put(ctx)
	if err != nil {
		return err
	}
	m := &pb.PutRequest{Header: &pb.PutHeader{Durable: o.durable, Block: &pb.BlockHeader{
		Namespace: s.namespace, Layer: s.addr.Layer, Digest: s.addr.Digest[:], Length: uint32(len(payload)),
		ExpiresUnixMs: o.expires,
	}}}
	for {
		n := min(len(payload), 1<<20)
		m.Data, payload = payload[:n], payload[n:]
		if err := stream.Send(m); err != nil || len(payload) == 0 {
			break // CloseAndRecv returns the reason
		}
		m = &pb.PutRequest{}
	}
	_, err = stream.CloseAndRecv()
	if status.Code(err) == codes.ResourceExhausted {
		err = fmt.Errorf("%w: %w", errFull, err)
	}
	return err
}

func (g grpcWay) del(ctx context.Context, s *subject) error {
	r, err := g.Delete(ctx, &pb.DeleteRequest{Namespace: s.namespace, Layer: s.addr.Layer, Digests: s.addr.Digest[:]})
	if err == nil && pb.Outcome(r.Outcomes[0]) != pb.Outcome_OUTCOME_OK &&
		pb.Outcome(r.Outcomes[0]) != pb.Outcome_OUTCOME_MISS {
		err = fmt.Errorf("delete: %v", pb.Outcome(r.Outcomes[0]))
	}
	return err
}

// s3Way stores objects in one bucket, without signatures.
type s3Way struct {
	base string
	http *http.Client
}

func (w *s3Way) do(ctx context.Context, method string, s *subject, body []byte, durable bool) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, w.base+url.PathEscape(s.key), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if durable {
		request.Header.Set("X-Cgn-Durable", "true")
	}
	r, err := w.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	switch {
	case err != nil:
		return nil, err
	case r.StatusCode == 404:
		return nil, errMiss
	case r.StatusCode == 503:
		return nil, fmt.Errorf("%w: %.300s", errFull, b)
	case r.StatusCode >= 300:
		return nil, fmt.Errorf("%s: %.300s", r.Status, b)
	}
	return b, nil
}

func (w *s3Way) get(ctx context.Context, s *subject) ([]byte, error) {
	return w.do(ctx, "GET", s, nil, false)
}

func (w *s3Way) put(ctx context.Context, s *subject, payload []byte, o putOptions) error {
	_, err := w.do(ctx, "PUT", s, payload, o.durable)
	return err
}

func (w *s3Way) del(ctx context.Context, s *subject) error {
	_, err := w.do(ctx, "DELETE", s, nil, false)
	return err
}
