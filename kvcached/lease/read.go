//go:build linux

package lease

import (
	"errors"
	"slices"

	"github.com/cognitora/dataplane/kv/frame"
	"github.com/cognitora/dataplane/kv/residency"
)

// Readers notes what engines can read; a residency.Index is one.
type Readers interface {
	// Read notes that a node's engine reads a namespace. The error is residency.ErrReaders if there
	// is no room.
	Read(node, namespace string) error
	// EndRead takes a Read back; with grace, because the connection has ended.
	EndRead(node, namespace string, grace bool)
}

// reading is what a connection has said that an engine reads.
type reading struct{ node, namespace string }

// note answers Read. Saying it again changes nothing.
func (c *conn) note(h frame.Header, body []byte) error {
	q, err := frame.ParseRead(body)
	if err != nil {
		return err
	}
	r := reading{string(q.Node), string(q.Namespace)}
	at, status := slices.Index(c.reads, r), frame.StatusOK
	switch {
	case q.End && at >= 0:
		c.server.o.Readers.EndRead(r.node, r.namespace, false)
		c.reads = slices.Delete(c.reads, at, at+1)
	case q.End || at >= 0:
	case len(c.reads) >= residency.MaxReads:
		status = frame.StatusQuota
	default:
		if err := c.server.o.Readers.Read(r.node, r.namespace); errors.Is(err, residency.ErrReaders) {
			status = frame.StatusQuota
		} else if err != nil {
			status = frame.StatusNamespace
		} else {
			c.reads = append(c.reads, r)
		}
	}
	return c.answer(h, status, nil)
}

// endReads takes back what the connection has said, after a grace.
func (c *conn) endReads() {
	for _, r := range c.reads {
		c.server.o.Readers.EndRead(r.node, r.namespace, true)
	}
	c.reads = nil
}

// noReaders notes nothing.
type noReaders struct{}

func (noReaders) Read(node, namespace string) error { return residency.CheckRead(node, namespace) }

func (noReaders) EndRead(string, string, bool) {}
