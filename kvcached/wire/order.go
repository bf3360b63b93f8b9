package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
)

// Bounds of an Order.
const (
	MaxTexts = 64                 // texts
	MaxText  = block.MaxNamespace // bytes of one text
)

var (
	errTexts = fmt.Errorf("%w: more than %d texts", TooLarge, MaxTexts)
	errText  = fmt.Errorf("%w: a text of more than %d bytes", BadFrame, MaxText)
	errMarks = fmt.Errorf("%w: more than %d marks", TooLarge, MaxBatch)
)

// Order is the body of Expire: Addrs expire at Moment, Unix ms; 0: never. The Marks of the Reply
// tell the outcome of each address. Expire leaves the other fields zero.
type Order struct {
	Host   string
	Number uint64
	Moment int64
	Texts  []string
	Addrs  []block.Addr // at most MaxBatch
}

// Append appends the encoded body to b.
func (o *Order) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = append(le.AppendUint64(b, uint64(len(o.Host))), o.Host...)
	b = le.AppendUint64(le.AppendUint64(b, o.Number), uint64(o.Moment))
	return AppendAddrs(appendTexts(b, o.Texts), o.Addrs)
}

func appendTexts(b []byte, texts []string) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, uint64(len(texts)))
	for _, t := range texts {
		b = append(le.AppendUint64(b, uint64(len(t))), t...)
	}
	return b
}

func (c *cursor) texts() (out []string) {
	for range c.length(MaxTexts, errTexts) {
		out = append(out, string(c.bytes(uint64(MaxText), errText)))
		if !c.ok() {
			return nil
		}
	}
	return out
}

// ParseOrder reads the body of Expire.
func ParseOrder(body []byte) (*Order, error) {
	c := cursor{rest: body}
	o := &Order{Host: string(c.bytes(MaxHost, errHost)), Number: c.u64(), Moment: int64(c.u64())}
	o.Texts = c.texts()
	if !c.ok() {
		return nil, c.end()
	}
	var err error
	o.Addrs, err = ParseAddrs(c.rest, nil)
	return o, err
}

// AppendPurges appends the answer to a Purge with an empty body: one byte, 1 if the list is fresh,
// else 0, and then the list.
func AppendPurges(b, list []byte, fresh bool) []byte {
	return append(AppendBools(b, []bool{fresh}), list...)
}

// ParsePurges reads the answer to a Purge with an empty body. The list is a part of body.
func ParsePurges(body []byte) (list []byte, fresh bool, err error) {
	if len(body) == 0 {
		return nil, false, BadFrame
	}
	return body[1:], body[0] == 1, nil
}

// Reply is the answer to an Order and to a Purge. Number is the number of blocks that a Purge
// removed.
type Reply struct {
	Number uint64
	Marks  []byte // at most MaxBatch
	Texts  []string
	Addrs  []block.Addr // at most MaxBatch
}

// Append appends the encoded body to b.
func (r *Reply) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(le.AppendUint64(b, r.Number), uint64(len(r.Marks)))
	return AppendAddrs(appendTexts(append(b, r.Marks...), r.Texts), r.Addrs)
}

// ParseReply reads the body of an answer to Expire or Purge.
func ParseReply(body []byte) (*Reply, error) {
	c := cursor{rest: body}
	r := &Reply{Number: c.u64()}
	r.Marks = append(r.Marks, c.bytes(MaxBatch, errMarks)...)
	r.Texts = c.texts()
	if !c.ok() {
		return nil, c.end()
	}
	var err error
	r.Addrs, err = ParseAddrs(c.rest, nil)
	return r, err
}
