package chunks

// Stats are the numbers of chunks by state, and counts since the start.
type Stats struct {
	Parts      int // objects with a part of a chunk
	Counted    int // chunks that count
	Untold     int // chunks with parts that nobody has told which blocks they stand for
	Incomplete int // told chunks of which some parts are missing, or what an SGLang needs besides them
	Disputed   int // chunks that were told in two ways
	Idle       int // told chunks without parts

	Forms   uint64 // keys that look like those of a scheme, and are of an unknown form
	Tags    uint64 // keys with tags of the request
	Beside  uint64 // stored objects that an SGLang needs besides pages, and whose model's pages do not count
	Full    uint64 // parts beyond the table's bounds
	Refused uint64 // told chunks that were not taken
	Notes   uint64 // notes that make no sense
	Unkept  uint64 // notes that could not be written
}

// Stats returns the numbers as of now.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.counts
	s.Parts, s.Counted, s.Untold = t.parts.n, t.states[counted], t.states[untold]
	s.Incomplete, s.Disputed, s.Idle = t.states[incomplete], t.states[contested], t.states[idle]
	return s
}
