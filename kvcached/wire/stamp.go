package wire

// Stamp names the purges of the fleet that its sender has carried out. Versions of the daemon
// without stamps send zeros. Blocks of these versions count as older than every purge.
type Stamp struct {
	History uint32 // numbering of the purges; states of two histories do not compare; 0: none
	State   uint32 // state of the list of purges; 0: none
}

// SetStamp puts the requester's stamp into a request.
func (f *Frame) SetStamp(s Stamp) {
	at := uint64(s.History)<<32 | uint64(s.State)
	if f.Op == Put {
		f.Offset = at
	} else {
		f.Total = at
	}
}

// Stamp returns the requester's stamp from a request.
func (f *Frame) Stamp() Stamp {
	at := f.Total
	if f.Op == Put {
		at = f.Offset
	}
	return Stamp{uint32(at >> 32), uint32(at)}
}

// Answer puts the answerer's state into an answer. Call Answer only if both sides have the same
// history. An answer without a state says that its blocks are older than every purge.
func (f *Frame) Answer(s Stamp) { f.DeadlineMS = s.State }

// Answered returns the answerer's stamp from the answer to a request.
func (f *Frame) Answered(request *Frame) Stamp { return Stamp{request.Stamp().History, f.DeadlineMS} }
