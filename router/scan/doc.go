// Package scan reads a request body for routing: the model, the stream flags, and the canonical
// prompt text for block digests. Scan walks the body once, in place. Edits change members of the
// body's root on the way to an engine; all other bytes are forwarded unchanged. Find reads one
// member of a request or of an answer.
//
// # Canonical prompt text
//
// Block digests hash the canonical text, so its format is a contract. A change of the format
// changes every digest. The text depends on the content of a request, never on its JSON spelling:
// not on white space, the order of members, or escapes.
//
// All text in the canonical text is valid UTF-8. Every mark is a byte that UTF-8 never uses, so no
// client's text can contain a mark:
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
// In values (tools, arguments, tool input) the members of an object are sorted by the bytes of
// their decoded names. A whole number below 2^53 has one spelling: 16, 16.0 and 1.6e1 are 16.
//
// The parts of the text have this order:
//
//  1. tools, then functions (older spelling): each definition as a value
//  2. Responses instructions or Anthropic system: a message of role "system"
//  3. messages, or the items of a Responses input (a plain string is a message
//     of role "user")
//
// A message consists of its role (an item without a role: its type), name, id, content, tool calls,
// function call, arguments, audio. String content equals a content list with one text part. The
// parts of a list keep their order. The members of a part have this order: thinking, text, refusal,
// title, context, name, input, id, tool_use_id, nested content, media. The members of a tool call
// have this order: name, arguments, id. Members that no engine puts into a prompt are left out (ids
// of messages, status, image detail, cache_control …). The reasoning of earlier chat turns is left
// out as well, because templates drop it.
//
// A completion's prompt is its plain text, with 0xFF between the prompts of a list. The same holds
// for the input of an embedding. Rerank and score put 0xFE before each text, queries first. A
// prompt of token ids leaves the text empty and fills Tokens. A list of token lists is joined.
//
// # Memory
//
// A Request keeps the first 4 MiB of the canonical text, because a chain of blocks hashes no more.
// A Request counts the rest: see TextKept and Prompt.Omitted. Text is cut once it cannot be among
// the first bytes any more, whatever still follows. Objects must be complete to be sorted. So a
// request is refused if its objects hold more than 24 MiB of text together, or one value has more
// than 65,536 members.
package scan
