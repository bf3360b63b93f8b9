// Package patience decides how long to wait for a node before another one is asked, and
// notices nodes that have stopped making progress.
//
// It learns what a served model needs from what its nodes do. It keeps no clock (every call is
// told the time) and starts no goroutine: router/leg calls Model.Check every PatienceFloor/10,
// and Check asks the owner of each late attempt to give it up. One mutex per model guards
// everything but what is atomic: a node's pulse, which each chunk of an answer sets, and what
// waits at a node (Node.Queued).
//
// # First byte of a stream
//
// An attempt brings u uncached tokens to a node where q uncached tokens of earlier attempts
// still wait. What it should need is
//
//	E(u+q) = a + b·(u+q)
//
// with a, b >= 0 from a least-squares line over the model's last ~64 first bytes, each clipped at
// 4·E so that one outlier teaches little. Beyond the largest u+q seen (a decaying maximum) E grows
// in proportion, as if all the time were per token. E is never taken below PatienceFloor/4, so that
// noise on a fast fleet is not mistaken for slowness. Until 3 first bytes have been seen E is
// FirstByteCold/4; until there are 8 it is 4 times the slowest of them, FirstByteCold/4 at most,
// for prompts up to the largest of them (cached tokens count as uncached), and grows in proportion
// beyond.
//
// An attempt with c tokens believed cached is overdue when its wait reaches
//
//	limit = L·E(u+q)·max(1, node, peers)·4^doubts + 2·(E(u+q+c) - E(u+q))
//	L     = 4 + 4·excess, at most 16; excess = moving mean of max(0, wait/E - 1), each at most 3
//
// clamped to [PatienceFloor, FirstByte]. What was given up counts in excess too, so that a fleet
// with a long tail is not asked twice forever. The last term pays for a wrong belief: the whole
// prompt computed anew, twice over.
//
//   - node is the moving mean of wait/E on this node: slow hardware gets the time it needs.
//   - peers is the lower median, over the model's other nodes, of how slow each one is now: the
//     larger of its moving mean (if younger than 10 s) and of wait/E of the attempts that wait
//     there at this moment. Waits that have not ended count, so it rises while a whole fleet is
//     slowing down and nobody has answered yet. An attempt can only be overdue by being 4 times
//     worse off than half of its peers: when every node is busy and slow nothing is given up,
//     and up to half of a fleet may hang and still be told from the rest.
//   - doubts counts the nodes (up to 3) where something was given up since the model's last
//     first byte within 4·E. What was given up is a probe: the others follow when it, or anything
//     else, is answered in time elsewhere, and giving up gets rarer while nothing is.
//
// A model with a single node waits for FirstByte: there is nobody else to ask.
//
// # Nodes without progress
//
// An answer that is not streamed shows nothing until it is complete, so nothing can be said of
// one alone; the node is looked at as a whole. Its silence began at the later of its last byte
// (of any response, for any model) and the dispatch of its oldest attempt that got nothing. It
// is judged once a peer has answered something that was sent after that. Every waiting attempt
// is then a witness with p, the chance that a healthy node would have kept it waiting this long:
//
//	p = S(w/(2·slow)) / S(w0/(2·slow)), at least 1/50
//
// where S is the survival function of the model's response times (add-one smoothing; apart for
// requests that generate nothing), w the wait, w0 the part of it before the silence, and slow
// the median of how much slower than expected, or longer than usual, the peers' answers since
// then were (at least 1), times prompt/(largest prompt seen) for a larger one. Peers answer
// their shortest requests first, so p is also at least the share of those sent no later that
// wait at the peers, among them and the answers. What waits on one node waits for one reason
// and cannot be multiplied freely: a node may be twice as slow as its peers, and a witness with
// p above 1/4 says nothing. Further,
//
//   - p = 1/1000 when w-w0 > 4·slow·(E + d·max_tokens), d being the largest recent seconds per
//     completion token; with max_tokens unknown, when w-w0 > 4·slow·(longest response time).
//     Both need 8 observations. A long generation that its max_tokens allow is therefore never
//     enough by itself.
//   - p = 1/100 for each stream that became overdue in this silence.
//
// Overdue streams count at once (once 4·slow·E has passed, too), everything else after StallFloor
// of silence. A product of at most 1/100 sets the node aside, at most 1/1000 also moves its
// waiting attempts (Rescue). Until the node's next byte that evidence goes on counting as 1/100
// against it: when it is tried again and still hangs, one wait that three answers in four do not
// need is enough. Streams that have begun are no witnesses (a client that stops reading silences
// them too); their bound is the idle timeout.
package patience
