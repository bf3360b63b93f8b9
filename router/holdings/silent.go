package holdings

import "slices"

// A silent node's engine has not said what it reads, as with hand-written clients of a daemon. The
// blocks of a model count for a silent node while its host has one configuration of the model.
// Blocks that only other hosts have count if they are of the same one. If its host has none of the
// model, they count if the daemons that exchange blocks have one. where.Usage corrects a wrong
// belief by the engine's cached tokens.

// sole says whether the daemon has blocks of a kind, and of no other one of its model.
func (s *stock) sole(of *kind) bool { return s.models[of.model] == of.name }

// contested says whether a daemon that exchanges blocks has, or may have, another kind of a model.
func (q *Query) contested(of *kind) bool {
	other := func(s *stock) bool {
		only, has := s.models[of.model]
		return s.of.exchanges() && (has && only != of.name || !has && s.unlisted)
	}
	return slices.ContainsFunc(q.stocks, other) || slices.ContainsFunc(q.others, other)
}
