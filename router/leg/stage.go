package leg

import "github.com/cognitora/dataplane/router/connector"

// stage is what has become of the prompt that P computes for D.
//
//	unasked ─ P has answered ─▶ fresh ─ D may have got the request ─▶ spent
//	unasked ─ both are asked ─▶ together
//
// From fresh and spent the way back is that D reads the blocks, or that they are given up (repay).
// Blocks in the hosts' caches stay fresh whoever has read them, unless D reports a failure.
// A D that has refused the request, with a status of 4xx, has read nothing. One that has failed
// may have.
// From together it is that P's leg is called off.
type stage uint8

const (
	unasked  stage = iota // no P computes or keeps the prompt
	together              // P is asked beside D's exchange
	fresh                 // P keeps the blocks, and no node may have been told where they are
	spent                 // P keeps the blocks; a node may have been told, and is not known to have read them
)

// keep notes that P has answered, and keeps the blocks for d.
func (h *hand) keep(d *member) { h.stage, h.reader = fresh, d }

// ended notes that D's exchange has ended in v. status is that of D's answer; 0: there is none.
func (h *hand) ended(v verdict, status int) {
	if h.stage != fresh && h.stage != spent {
		return
	}
	switch v {
	case answered, lost, failed500:
		if h.stage = unasked; status >= 400 && status < 500 {
			h.stage = spent
		}
	case unreached, starved: // D has got nothing
	default:
		if _, cached := h.with.(connector.Cacher); !cached {
			h.stage = spent
		}
	}
}

// spoil notes that nobody may use the blocks any more.
func (h *hand) spoil() {
	if h.stage == fresh {
		h.stage = spent
	}
}
