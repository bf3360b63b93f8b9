// Package patience decides how long to wait for a node before another one is asked. The package
// also notices nodes that have stopped making progress.
//
// The package learns the expected times of a served model from its nodes' answers. The package
// keeps no clock; every call passes the time. The package starts no goroutine. router/leg calls
// Model.Check every PatienceFloor/10. Check asks the owner of each late attempt to give it up. One
// mutex per model guards all state except two atomics. A node's pulse is set by each chunk of an
// answer. Node.Queued counts the tokens that wait at a node.
//
// # First byte of a stream
//
// An attempt brings u uncached tokens to a node where q uncached tokens of earlier attempts still
// wait. The attempt's expected time to first byte is
//
//	E(u+q) = a + b·(u+q)
//
// with a, b >= 0 from a least-squares line over the model's last ~64 first bytes. Each first byte
// is clipped at 4·E, so that an outlier changes the line little. Beyond the largest u+q seen (a
// decaying maximum) E grows in proportion, as if all the time were per token. E is at least
// PatienceFloor/4, so that noise on a fast fleet does not count as slowness.
//
// E is FirstByteCold/4 until 3 first bytes have been seen. From 3 to 8 first bytes E is 4 times the
// slowest of them, FirstByteCold/4 at most. That rule holds up to the largest prompt seen. For
// larger prompts E grows in proportion. Cached tokens count as uncached until 8 first bytes have
// been seen.
//
// An attempt with c tokens believed cached is overdue when its wait reaches
//
//	limit = L·E(u+q)·max(1, node, peers)·4^doubts + 2·(E(u+q+c) - E(u+q))
//	L     = 4 + 4·excess, at most 16; excess = moving mean of max(0, wait/E - 1), each at most 3
//
// clamped to [PatienceFloor, FirstByte]. Abandoned attempts count in excess too. A fleet with a
// long tail then gets fewer second attempts over time. The last term pays for a wrong belief in
// cached tokens: it is twice the time to compute them.
//
//   - node is the moving mean of wait/E on this node. node gives slow hardware the time it needs.
//   - peers is the lower median of the other nodes' present slowness. A node's slowness is the
//     node's moving mean (if younger than 10 s) or the wait/E of an attempt that waits there now,
//     whichever is larger. peers rises before any answer comes, while the whole fleet is slowing
//     down. An attempt is overdue only if it is 4 times worse off than half of its peers. So
//     nothing is given up when every node is busy and slow. Up to half of a fleet may hang and
//     still be told from the healthy nodes.
//   - doubts counts the nodes (up to 3) where an attempt was given up since the model's last first
//     byte within 4·E. An abandoned attempt is a probe of another node. Further attempts follow
//     once any first byte comes in time. Until then each further doubt makes giving up rarer.
//
// A model with a single node waits for FirstByte, because it has no other node to ask.
//
// # Nodes without progress
//
// An unstreamed answer shows nothing until it is complete. Its prompt counts as computed once the
// caller's expected time, or else E, has passed.
//
// One such attempt alone proves nothing, so the node is judged as a whole. A node's silence began
// at its last byte (of any response, for any model), or at the dispatch of its oldest unanswered
// attempt if that is later. A node is judged once a peer has answered a request sent after that.
// Every waiting attempt is then a witness. A witness's p is the chance that a healthy node would
// have kept it waiting this long:
//
//		p = S(w/(2·slow)) / S(w0/(2·slow)), at least 1/50
//
//	 - S is the survival function of the response times of like requests, with add-one smoothing.
//	   Requests are like a witness if their max_tokens is in the same octave or a higher one. If the
//	   least max_tokens seen in the octave is smaller than the witness's, w and w0 count less, in
//	   proportion. Only requests without max_tokens are like one without. Requests that generate
//	   nothing have an S of their own.
//	 - w is the wait, and w0 is the part of the wait before the silence.
//	 - slow is the median slowness of the peers' answers since then, or the node's own if that is
//	   larger, at least 1. An answer's slowness is its time over the expected or the usual time. The
//	   node's own slowness is the moving mean over its unstreamed answers. A call that is given up
//	   raises it to the call's wait over the usual time. So the next call there may wait about twice
//	   as long, and giving up never confirms itself. For a prompt larger than any seen, slow is
//	   multiplied by prompt/(largest prompt seen).
//
// Peers answer their shortest requests first. So p is at least alike/(alike+answers): alike counts
// the peers' waiting attempts that were sent no later, and answers counts the peers' answers. The
// attempts at one node may all wait for one cause, so their p must not be multiplied freely.
// Therefore S allows a node to be twice as slow as its peers, and a witness with p above 1/4 does
// not count.
//
//   - p is 1/1000 when w-w0 > 4·slow·(E + d·max_tokens). d is the largest recent time per
//     completion token in seconds. If nothing is generated, the bound is 4·slow·(longest response
//     time). Each of the two bounds needs 8 observations. A generation without max_tokens has no
//     bound. So a long generation within its max_tokens never suffices by itself.
//   - p is 1/100 for each stream that became overdue in this silence.
//
// Overdue streams count at once; an abandoned one counts after 4·slow·E. All other witnesses count
// after StallFloor of silence. A product of at most 1/100 sets the node aside. A product of at most
// 1/1000 also moves its waiting attempts (Rescue). Calls move only once StallFloor has passed since
// the first report. The caller sends the reported node a completion check meanwhile. An answered
// check (Pulse.Beat) ends the silence, so a node that is busy with long answers keeps them.
//
// Until the node's next byte the evidence goes on counting as 1/100. If the node is tried again and
// still hangs, one wait is then enough evidence, if it exceeds the waits of three answers in four.
// Old evidence moves no attempt sent after the last report, because the node may have recovered. A
// stream that has begun is no witness, because a client that stops reading silences it too. The
// idle timeout bounds a stream that has begun.
package patience
