// Package instant is an engine that costs next to nothing: canned answers in vLLM's wire
// format over raw HTTP/1.1, so that what stands before it is what is measured.
//
// The prompt, which every router passes on, says in its last words what is wanted, after "instant:"
// and in the form name=value:
//
//	pace=20000    microseconds between the tokens of a stream; 0: as fast as they are taken
//	step=1        a token of the stream for each call of Step
//	prompt=512    prompt tokens of the usage
//	cached=256    cached prompt tokens of the usage
//	hang=1        no answer, not even a head, until the client leaves
//
// These, max_tokens, stream and include_usage are looked for in the first and the last kilobyte of
// the body only; the rest is read and dropped.
//
// The content of every token is a Stamp: its number in the stream, the stream's number
// and the time it was sent.
package instant
