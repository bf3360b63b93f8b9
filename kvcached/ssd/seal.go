package ssd

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
)

// sealer returns a segment's cipher, or nil without a key. The cipher's key is derived from the
// tier's key and the segment's random salt. So no two segments share a key, even in a directory
// that was emptied or copied. The nonce is the number of a record's first page. No page of a
// segment is given out twice, so no nonce is.
func sealer(key []byte, salt [16]byte) (cipher.AEAD, error) {
	if key == nil {
		return nil, nil
	}
	derived, err := hkdf.Key(sha256.New, key, salt[:], "cognitora.ssd.segment.v1", keyBytes)
	if err != nil {
		return nil, err
	}
	b, err := aes.NewCipher(derived)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(b)
}

func nonce(page uint32) []byte { return binary.LittleEndian.AppendUint32(make([]byte, 8, 12), page) }

// authenticated returns the data that the seal covers in addition to the payload: the header
// without its checksum.
func authenticated(head []byte, names int) []byte {
	b := append(make([]byte, 0, recordFixed+names), head[:recordFixed+names]...)
	clear(b[recordCRC : recordCRC+4])
	return b
}

// sealed seals the payload of the record with the encoded header head, into aligned memory from the
// pool.
func (t *Tier) sealed(ctx context.Context, s *segment, h *header, head, payload []byte) ([]byte, error) {
	size := storedSize(h.size, h.flags)
	b, err := t.buffers.get(ctx, roundUp(size))
	if err != nil {
		return nil, err
	}
	s.seal.Seal(b[:0], nonce(h.page), payload, authenticated(head, h.names()))
	clear(b[size:])
	return b, nil
}
