package limits

// Subject is one that limits bound: an account, and its rates now.
type Subject struct {
	*Account
	Rates *Rates
}

// maxSubjects is the most subjects of one request: a key and a tenant, each also for its model.
const maxSubjects = 4

// Reservation is what one request has reserved with its subjects. The zero Reservation has none. A
// Reservation is used by one goroutine at a time.
type Reservation struct {
	subjects [maxSubjects]Subject
	n        int
	reserved Use
}

// Reserve reserves u with all subjects, at most four, or with none. The refusal is of the first
// subject without room.
func (r *Reservation) Reserve(u Use, subjects ...Subject) (Refusal, bool) {
	at := now()
	r.reserved = u
	for _, s := range subjects {
		if no, ok := s.reserve(s.Rates, u, at); !ok {
			r.settle(Use{}, at)
			return no, false
		}
		r.subjects[r.n] = s
		r.n++
	}
	return Refusal{}, true
}

// Settle counts what the request has used in place of what it has reserved. Calls after the first
// do nothing.
func (r *Reservation) Settle(used Use) { r.settle(used, now()) }

func (r *Reservation) settle(used Use, at int64) {
	for _, s := range r.subjects[:r.n] {
		s.settle(s.Rates, r.reserved, used, at)
	}
	*r = Reservation{}
}

// Reserved returns what is reserved.
func (r *Reservation) Reserved() Use { return r.reserved }

// Left returns what is left of the limits of a kind, of the subject that has the least left. ok is
// false if no subject has a limit of the kind.
func (r *Reservation) Left(k Kind) (least Left, ok bool) {
	at := now()
	for _, s := range r.subjects[:r.n] {
		l, has := s.left(s.Rates, k, at)
		if has && (!ok || l.Remaining < least.Remaining) {
			least, ok = l, true
		}
	}
	return least, ok
}
