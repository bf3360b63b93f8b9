// Package jinja renders the chat templates of language models as transformers' apply_chat_template
// does: Jinja 3 in its sandbox, with trim_blocks and lstrip_blocks, loop controls, tojson in the
// format of json.dumps, raise_exception and strftime_now.
//
// Members of objects keep their order, which reaches prompts through tojson. Parse refuses
// unsupported tags, filters, tests and methods. Unsupported features that show only during
// rendering are errors of Render.
package jinja
