// Package instant is an engine with very little cost, for measurements of routers. The engine sends
// prepared answers in vLLM's wire format over raw HTTP/1.1.
//
// The last words of the prompt, which every router forwards, may have instructions after
// "instant:", in the form name=value:
//
//	pace=20000    microseconds between the tokens of a stream; 0: as fast as they are taken
//	step=1        a token of the stream for each call of Step
//	prompt=512    prompt tokens of the usage
//	cached=256    cached prompt tokens of the usage
//	hang=1        no answer, not even a head, until the client leaves
//
// The engine looks for these instructions, max_tokens, stream and include_usage only in the first
// and the last kilobyte of the body. The engine reads and drops the other bytes of the body.
//
// The content of every token is a Stamp: its number in the stream, the stream's number and its
// sending time.
package instant
