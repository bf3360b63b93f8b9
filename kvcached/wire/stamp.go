package wire

// Stamp says up to which purge of a fleet somebody knows, or has checked blocks. Versions without
// purges that are numbered send zeros: their blocks are older than every purge.
type Stamp struct {
	History  uint32 // numbers of two histories do not compare; 0: none
	Revision uint32
}

// SetStamp puts the stamp of who asks into a request.
func (f *Frame) SetStamp(s Stamp) {
	at := uint64(s.History)<<32 | uint64(s.Revision)
	if f.Op == Put {
		f.Offset = at
	} else {
		f.Total = at
	}
}

// Stamp is the stamp of who asks.
func (f *Frame) Stamp() Stamp {
	at := f.Total
	if f.Op == Put {
		at = f.Offset
	}
	return Stamp{uint32(at >> 32), uint32(at)}
}

// Answer puts the stamp of who answers into an answer: the number only, where the two have the same
// history. Without it blocks are older than every purge.
func (f *Frame) Answer(s Stamp) { f.DeadlineMS = s.Revision }

// Answered is the stamp of the answer to a request.
func (f *Frame) Answered(request *Frame) Stamp { return Stamp{request.Stamp().History, f.DeadlineMS} }
