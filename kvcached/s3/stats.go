package s3

import "sync/atomic"

// Stats is a snapshot of a Server's counters.
type Stats struct {
	Requests       uint64 // all
	Hits           uint64 // GET and HEAD of an object that is there
	Misses         uint64 // GET and HEAD of an object that is not there
	Puts           uint64 // objects written, uploads completed among them
	Deletes        uint64 // objects deleted that were there
	BytesIn        uint64 // of payloads
	BytesOut       uint64 // of payloads
	Denied         uint64 // no or wrong credentials, expired, or not allowed
	Refused        uint64 // other mistakes of clients
	SlowedDown     uint64 // answered SlowDown: no memory, or a bound reached
	Failed         uint64 // answered InternalError
	Aborted        uint64 // bodies that broke off or were too slow
	BadDigests     uint64 // payloads whose checksum was wrong
	UploadsExpired uint64 // multipart uploads aborted for their age
	Bodies         int64  // on their way now
	Uploads        int64  // multipart uploads that are not complete
	UploadBytes    int64  // memory of their parts
}

type counters struct {
	requests, hits, misses, puts, deletes, bytesIn, bytesOut             atomic.Uint64
	denied, refused, slowed, failed, aborted, badDigests, uploadsExpired atomic.Uint64
}

// Stats reads the counters, one after the other.
func (s *Server) Stats() Stats {
	pending, held := s.uploads.sizes()
	return Stats{
		Requests: s.count.requests.Load(), Hits: s.count.hits.Load(), Misses: s.count.misses.Load(),
		Puts:    s.count.puts.Load(),
		Deletes: s.count.deletes.Load(), BytesIn: s.count.bytesIn.Load(),
		BytesOut: s.count.bytesOut.Load(),
		Denied:   s.count.denied.Load(), Refused: s.count.refused.Load(), SlowedDown: s.count.slowed.Load(),
		Failed:  s.count.failed.Load(),
		Aborted: s.count.aborted.Load(), BadDigests: s.count.badDigests.Load(),
		UploadsExpired: s.count.uploadsExpired.Load(),
		Bodies:         int64(len(s.bodies)), Uploads: int64(pending), UploadBytes: held,
	}
}
