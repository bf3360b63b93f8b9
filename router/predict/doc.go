// Package predict tells how long engines take for their work. The package learns from the times of
// first tokens and from the gaps between tokens, which the router sees anyway.
//
// Engines of one kind share a Kind. A Kind has the Rates of a typical engine of its kind:
//
//	prefill = Token·tokens + Pair·tokens·(cached + tokens/2)
//	step    = Step + Sequence·requests + Block·blocks
//	first   = Base + waiting prefill + prefill + Steps·step
//
// The waiting prefill is that of the prompts before this one, with Each for each of them.
// tokens are those that the engine must compute, and cached those before them that it holds.
// requests and blocks are what the engine's decode step works on. A step gives each running request
// one token. All times are in seconds.
//
// An Engine is one engine. Two factors say how much slower its prefill and its decode steps are
// than the Kind's. The factor of prefill holds for all of a first token but what waits before it. A
// new engine begins with what its like have taught, and needs few answers of its own. An engine has
// the typical factor of its kind until its answers differ by more than chance. What is chance
// follows from how much the answers of the kind scatter, and counts as little at first. A slow
// engine that gets no requests would be slow for ever, so MayTry lets it be tried now and then.
//
// # Learning
//
// A Kind keeps decayed sums over about the last 96 observations of each size, and solves for rates
// that are not negative. Errors count relative to the expected time. After the first few, an
// observation counts at most as one and a half times and at least as a quarter of the expectation.
// One above that counts a tenth. So the rates are those of answers that nothing delayed. Before its
// first observation a Kind has start values of a middle-sized GPU. Memory does not grow.
package predict
