package engine

import "strconv"

// shown returns ids if the request wants them or its answer is that of a context leg, else nil.
func (s *sampling) shown(ids []uint32, context *disaggregated) []uint32 {
	if !s.ReturnTokens && context == nil {
		return nil
	}
	return ids
}

// appendIDs appends ids as a JSON list, or null if the request does not want them.
func (s *sampling) appendIDs(b []byte, ids []uint32) []byte {
	if !s.ReturnTokens {
		return append(b, "null"...)
	}
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return append(b, ']')
}

// appendID appends the id of token n as a JSON list, or null if the request does not want ids.
func (s *sampling) appendID(b []byte, o *output, n int) []byte {
	if !s.ReturnTokens {
		return append(b, "null"...)
	}
	return s.appendIDs(b, []uint32{o.token(n)})
}
