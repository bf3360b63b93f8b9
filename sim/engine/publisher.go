package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// subscriberQueue bounds the batches that wait for one subscriber. Further batches are lost to the
// subscriber, as beyond the high-water mark of a ZMQ PUB socket.
const subscriberQueue = 10000

// publisher sends KV event batches to subscribers and answers replay requests. A nil publisher does
// nothing.
type publisher struct {
	form   KVEvents
	events *eventLog

	owned  sync.WaitGroup
	pub    net.Listener
	replay net.Listener // nil without replay

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]*subscriber // value nil for replay connections
}

// newPublishers binds the sockets of all data-parallel ranks. newPublishers returns nil publishers
// for a nil form. Ports that the caller leaves open are chosen below those of outgoing connections:
// among the latter, a busy machine has no two free ones in a row.
func newPublishers(form *KVEvents, ranks int) (all []*publisher, err error) {
	if form == nil || ranks == 1 {
		return bindRanks(form, ranks)
	}
	for range portTries {
		row := *form
		row.Endpoint, row.ReplayEndpoint = inARow(form.Endpoint), inARow(form.ReplayEndpoint)
		if all, err = bindRanks(&row, ranks); err == nil {
			break
		}
	}
	return all, err
}

// portTries bounds the tries to find as many free ports in a row as there are ranks.
const portTries = 32

// inARow puts a port in place of the port 0 of an endpoint.
func inARow(endpoint string) string {
	if at, open := strings.CutSuffix(endpoint, ":0"); open {
		return fmt.Sprint(at, ":", 16_000+rand.IntN(16_000))
	}
	return endpoint
}

func bindRanks(form *KVEvents, ranks int) (all []*publisher, err error) {
	for i := range ranks {
		of := form
		if i > 0 && form != nil {
			if of, err = all[0].form.ofRank(all[0], i); err != nil {
				break
			}
		}
		p, e := newPublisher(of)
		if err = e; err != nil {
			break
		}
		all = append(all, p)
	}
	if err != nil {
		for _, p := range all {
			p.close()
		}
		return nil, err
	}
	return all, nil
}

// ofRank returns the form of a further rank, whose ports follow those that first has bound.
func (k KVEvents) ofRank(first *publisher, rank int) (*KVEvents, error) {
	var err error
	if k.Endpoint, err = offset(endpointOf(first.pub), rank); err != nil {
		return nil, err
	}
	if first.replay != nil {
		if k.ReplayEndpoint, err = offset(endpointOf(first.replay), rank); err != nil {
			return nil, err
		}
	}
	k.DPRank += rank
	return &k, nil
}

// offset adds a rank to the port of an endpoint.
func offset(endpoint string, rank int) (string, error) {
	addr, tcp := strings.CutPrefix(endpoint, "tcp://")
	if !tcp {
		return "", fmt.Errorf("%s: ranks differ by their ports, so give a tcp:// endpoint", endpoint)
	}
	host, port, _ := net.SplitHostPort(addr) // the address of a listener
	n, err := strconv.Atoi(port)
	if err != nil {
		return "", err
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(n+rank)), nil
}

// newPublisher binds the sockets of form. newPublisher returns nil for nil.
func newPublisher(form *KVEvents) (*publisher, error) {
	if form == nil {
		return nil, nil
	}
	p := &publisher{form: *form, conns: make(map[net.Conn]*subscriber)}
	p.events = &eventLog{form: *form, send: p.broadcast}
	var err error
	if p.pub, err = p.listen(form.Endpoint, "PUB", p.subscribe); err == nil && form.ReplayEndpoint != "" {
		p.replay, err = p.listen(form.ReplayEndpoint, "ROUTER", p.answer)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// listen accepts peers and serves each in a goroutine of its own.
func (p *publisher) listen(endpoint, kind string, serve func(*peer)) (net.Listener, error) {
	proto, addr, err := network(endpoint)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen(proto, addr)
	if err != nil {
		return nil, err
	}
	p.owned.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			p.owned.Go(func() { p.serve(conn, kind, serve) })
		}
	})
	return l, nil
}

func (p *publisher) serve(conn net.Conn, kind string, serve func(*peer)) {
	if !p.enter(conn) {
		return
	}
	defer p.leave(conn)
	if peer, err := handshake(conn, kind); err == nil {
		serve(peer)
	}
}

func (p *publisher) enter(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = conn.Close()
		return false
	}
	p.conns[conn] = nil
	return true
}

func (p *publisher) leave(conn net.Conn) {
	_ = conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}

// subscriber is one SUB peer.
type subscriber struct {
	topics [][]byte // guarded by publisher.mu
	queue  chan []byte
}

// subscribe reads subscriptions while a second goroutine writes batches.
func (p *publisher) subscribe(from *peer) {
	s := &subscriber{queue: make(chan []byte, subscriberQueue)}
	gone := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() { s.write(from.conn, gone) })
	p.mu.Lock()
	p.conns[from.conn] = s
	p.mu.Unlock()
	for {
		parts, command, err := from.message()
		if err != nil {
			break
		}
		// In ZMTP 3.0 a subscription is a message: 1 or, to end it, 0, and the topic.
		if body := parts[0]; !command && len(body) > 0 {
			p.mu.Lock()
			s.set(body[0] == 1, body[1:])
			p.mu.Unlock()
		}
	}
	close(gone)
	writer.Wait()
}

// write sends queued batches until gone is closed. A failed write closes the connection, which ends
// the reader.
func (s *subscriber) write(conn net.Conn, gone <-chan struct{}) {
	for {
		select {
		case b := <-s.queue:
			if _, err := conn.Write(b); err != nil {
				_ = conn.Close()
				return
			}
		case <-gone:
			return
		}
	}
}

// maxTopics bounds the topics of one subscriber. Further topics are ignored.
const maxTopics = 64

func (s *subscriber) set(on bool, topic []byte) {
	i := slices.IndexFunc(s.topics, func(t []byte) bool { return bytes.Equal(t, topic) })
	switch {
	case on && len(s.topics) < maxTopics:
		s.topics = append(s.topics, topic)
	case !on && i >= 0:
		s.topics = slices.Delete(s.topics, i, i+1)
	}
}

func (s *subscriber) wants(topic string) bool {
	return slices.ContainsFunc(s.topics, func(t []byte) bool { return strings.HasPrefix(topic, string(t)) })
}

// broadcast queues a batch for every subscriber of the topic.
func (p *publisher) broadcast(b batch) {
	msg := appendMessage(nil, []byte(p.form.Topic), sequenceFrame(b.seq), b.payload)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.conns {
		if s == nil || !s.wants(p.form.Topic) {
			continue
		}
		select {
		case s.queue <- msg:
		default: // the subscriber is too slow and will see a gap
		}
	}
}

func sequenceFrame(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// endOfReplay is the sequence number that ends a replay.
const endOfReplay = ^uint64(0)

// answer serves replay requests ["", start] of a DEALER or REQ peer.
func (p *publisher) answer(from *peer) {
	for {
		parts, command, err := from.message()
		if err != nil {
			return
		}
		if command || len(parts) != 2 || len(parts[1]) != 8 {
			continue
		}
		var out []byte
		for _, b := range p.events.since(binary.BigEndian.Uint64(parts[1])) {
			out = p.appendReplay(out, p.form.Topic, b)
		}
		out = p.appendReplay(out, "", batch{seq: endOfReplay})
		if _, err := from.conn.Write(out); err != nil {
			return
		}
	}
}

func (p *publisher) appendReplay(out []byte, topic string, b batch) []byte {
	if p.form.ReplayWithoutTopic {
		return appendMessage(out, nil, sequenceFrame(b.seq), b.payload)
	}
	return appendMessage(out, nil, []byte(topic), sequenceFrame(b.seq), b.payload)
}

// log returns the event log, or nil without KV events.
func (p *publisher) log() *eventLog {
	if p == nil {
		return nil
	}
	return p.events
}

// close ends all connections and goroutines and waits for them.
func (p *publisher) close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.closed = true
	for conn := range p.conns {
		_ = conn.Close()
	}
	p.mu.Unlock()
	for _, l := range []net.Listener{p.pub, p.replay} {
		if l != nil {
			_ = l.Close()
		}
	}
	p.owned.Wait()
}
