// Package scan reads a request body for routing: the model, the stream flags, and
// the canonical prompt text that block digests are made of. Scan walks the body
// once, in place. Edits change members of its root on the way to an engine; all
// other bytes are forwarded as they came. Find reads one member of a request or of
// an answer.
//
// # Canonical prompt text
//
// Block digests hash this text, so its format is a contract: a change to it is
// a change of every digest. It depends on what a request says, never on how its
// JSON is spelled: not on white space, the order of members, or escapes.
//
// All text in it is valid UTF-8, and every mark is a byte that UTF-8 never uses,
// so nothing that a client writes can be taken for a mark:
//
//	0xFF  begins a message; its role follows
//	0xFE  a piece of text follows
//	0xFD  image, audio, video or file: 32 hex digits follow, the first 16 bytes
//	      of the BLAKE3 of its data or URL string as the request has it
//	0xFC  a name follows, of a participant or a called function
//	0xFB  an id follows, of a tool call or of the call that a message answers
//	0xFA  begins a tool call
//	0xF8  a piece of reasoning ("thinking") follows
//	0xF7  opens an array, 0xF5 an object, 0xF6 closes either
//	0xC1  a member's name follows, 0xC0 a string, 0xF9 a number, true, false or null
//
// In values (tools, arguments, tool input) the members of an object are sorted
// by the bytes of their decoded names, and a whole number below 2^53 in size has one
// spelling: 16, 16.0 and 1.6e1 are 16.
//
// The parts of the text that the request has come in this order:
//
//  1. tools, then functions (older spelling): each definition as a value
//  2. Responses instructions or Anthropic system: a message of role "system"
//  3. messages, or the items of a Responses input (a plain string is a message
//     of role "user")
//
// A message is its role (an item without one: its type), name, id, content,
// tool calls, function call, arguments, audio. String content and a
// content list with one text part are the same. Parts follow in their order.
// Within a part: thinking, text, refusal, title, context, name, input, id,
// tool_use_id, nested content, media. Within a tool call: name, arguments, id.
// Members that no engine puts into a prompt (ids of messages, status, image detail,
// cache_control …) and the reasoning of earlier chat turns, which templates drop, do
// not count.
//
// A completion's prompt is its text alone, with 0xFF between the prompts of a
// list; so is the input of an embedding. Rerank and score are 0xFE and each
// text, queries first. A prompt of token ids leaves the text empty and fills
// Tokens; the lists of a list of lists are joined.
//
// # Memory
//
// A Request keeps the first 4 MiB of the canonical text, which is as much as a chain
// of blocks hashes, and counts the rest: see TextKept and Prompt.Omitted. Text is
// cut where it cannot be among the first bytes any more, whatever still comes.
// Objects come in order only as a whole, so a request is refused if they hold more
// than 24 MiB of text together, or 65,536 members in one value.
package scan
