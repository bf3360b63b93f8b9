// Package jinja renders the chat templates of language models as transformers' apply_chat_template
// does: Jinja 3 in its sandbox, with trim_blocks and lstrip_blocks, loop controls, tojson as
// json.dumps writes it, raise_exception and strftime_now.
//
// Members of objects keep their order, which reaches prompts through tojson. What is not supported
// is refused by Parse where the template's text shows it: tags, filters, tests and methods. What
// only a rendering can show is an error of Render.
package jinja
