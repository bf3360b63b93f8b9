// Keys and limits of the router: error classes, when the SDKs retry, and headers.
'use strict';

const assert = require('node:assert/strict');
const { describe, test } = require('node:test');
const {
  OpenAI, Anthropic, GUARDED, KEYS, RETRIES, openaiClient, anthropicClient, guardedRequests, classOf,
} = require('./fleet.js');

const SDKS = [
  ['openai', OpenAI, openaiClient, (c, b, o) => c.chat.completions.create(b, o)],
  ['anthropic', Anthropic, anthropicClient, (c, b, o) => c.messages.create(b, o)],
];

const body = (c, more) => ({
  model: c.model ?? 'keyed', max_tokens: c.max_tokens ?? 1,
  messages: [{ role: 'user', content: 'word '.repeat(c.words ?? 1) }], ...more,
});

// hold keeps a stream of the case's model open. It returns a function that ends the stream.
async function hold(c) {
  if (!c.hold) return () => {};
  const client = openaiClient(GUARDED, { apiKey: KEYS.free, maxRetries: 5 }); // the stream before may still end
  const stream = await client.completions.create({ model: c.model, prompt: 'hold', max_tokens: 4000, stream: true });
  await stream[Symbol.asyncIterator]().next();
  return () => stream.controller.abort();
}

// drain reads an answer to its end if it is a stream.
async function drain(answer) {
  if (answer[Symbol.asyncIterator]) for await (const event of answer) void event;
}

// ask asks until a request has the case's end, which takes the case's tries.
async function ask(c, name, sdk, send) {
  for (let i = 0; i < 200; i++) {
    const before = await guardedRequests();
    const e = await send().then(drain).then(() => null, (problem) => problem);
    const tries = (await guardedRequests()) - before;
    if (c.succeeds) {
      assert.equal(e, null);
      if (tries > 1) return assert.equal(tries, c.tries);
    } else if (e) {
      assert.ok(e instanceof classOf(sdk, c.status), String(e));
      assert.deepEqual([e.status, tries], [c.status, c.tries]);
      assert.equal(name === 'openai' ? e.code : e.type, name === 'openai' ? c.code : c.anthropic);
      if (c.retry_after) assert.equal(e.headers.get('retry-after'), c.retry_after);
      return;
    }
  }
  assert.fail('the limit refuses nothing');
}

for (const c of RETRIES) {
  describe(c.name, () => {
    for (const [name, sdk, make, call] of SDKS) {
      for (const stream of [false, true]) {
        test(`${name}${stream ? ' stream' : ''}`, async () => {
          const client = make(GUARDED, { apiKey: KEYS[c.key], maxRetries: 1 });
          const release = await hold(c);
          try {
            await ask(c, name, sdk, () => call(client, body(c, { stream }), { headers: c.headers }));
          } finally {
            release();
          }
        });
      }
    }
  });
}

for (const [name, , make, call] of SDKS) {
  test(`headers about limits on streams: ${name}`, async () => {
    const client = make(GUARDED, { apiKey: KEYS.metered });
    const { response } = await call(client, body({}, { stream: true })).withResponse();
    const [limit, left] = name === 'openai'
      ? ['x-ratelimit-limit-tokens', 'x-ratelimit-remaining-tokens']
      : ['anthropic-ratelimit-tokens-limit', 'anthropic-ratelimit-tokens-remaining'];
    assert.equal(response.headers.get(limit), '60000');
    assert.ok(Number(response.headers.get(left)) < 60000);
  });
}
