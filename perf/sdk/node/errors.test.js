// The errors that clients get: in the body, in the stream and after retries.
'use strict';

const assert = require('node:assert/strict');
const { describe, test } = require('node:test');
const {
  OpenAI, Anthropic, FLEET, STRICT, ENGINES, CASES, KEY, openaiClient, anthropicClient, setFault, clearFaults, settle,
  holdStreams, caught, classOf, healthyFleet,
} = require('./fleet.js');

const messages = [{ role: 'user', content: 'Hello there, how are you today?' }];

// Each API as call(client, body, options).
const OPENAI_APIS = {
  chat: (c, b, o) => c.chat.completions.create({ messages, max_tokens: 2000, ...b }, o),
  completions: (c, b, o) => c.completions.create({ prompt: 'Hello', max_tokens: 2000, ...b }, o),
  responses: (c, b, o) => c.responses.create({ input: 'Hello', max_output_tokens: 2000, ...b }, o),
  embeddings: (c, b, o) => c.embeddings.create({ input: 'Hello', ...b }, o),
};
const ANTHROPIC_APIS = {
  messages: (c, b, o) => c.messages.create({ messages, max_tokens: 2000, ...b }, o),
  count_tokens: (c, b, o) => c.messages.countTokens({ messages, ...b }, o),
};
const STREAMS = ['chat', 'completions', 'responses', 'messages'];

// variants are every API with and without streaming, where the case has both.
function* variants(apis, c) {
  for (const [name, call] of Object.entries(apis)) {
    if (!c.only_stream) yield [name, call, {}];
    if (STREAMS.includes(name)) yield [`${name} stream`, call, { stream: true }];
  }
}

async function raised(sdk, client, c, call, extra) {
  const body = { model: c.model ?? 'sim', ...extra, ...c.body };
  if (c.pad_bytes) body.padding = 'x'.repeat(c.pad_bytes);
  const release = await holdStreams(c.hold ?? []);
  try {
    const e = await caught(classOf(sdk, c.status), call(client, body, { headers: c.headers }));
    assert.equal(e.status, c.status);
    if (c.retry_after) assert.equal(e.headers.get('retry-after'), c.retry_after);
    if (c.message) assert.ok(e.message.includes(c.message), e.message);
    return e;
  } finally {
    release();
    await settle();
  }
}

healthyFleet();

for (const c of CASES) {
  const router = c.router === 'strict' ? STRICT : FLEET;
  describe(c.name, () => {
    for (const [name, call, extra] of variants(OPENAI_APIS, c)) {
      test(name, async () => {
        const e = await raised(OpenAI, openaiClient(router), c, call, extra);
        for (const field of ['type', 'code', 'param']) if (c[field]) assert.equal(e[field], c[field]);
      });
    }
    for (const [name, call, extra] of variants(ANTHROPIC_APIS, c)) {
      test(name, async () => {
        const e = await raised(Anthropic, anthropicClient(router), c, call, extra);
        if (!c.anthropic) return;
        assert.equal(e.error.type, 'error');
        assert.equal(e.type, c.anthropic);
        assert.ok(e.error.error.message);
      });
    }
  });
}

const isToken = (event) =>
  /\.delta$|^content_block_delta$/.test(event.type ?? '') || event.choices?.[0]?.delta?.content || event.choices?.[0]?.text;

// fails reads a stream that must end with an error; it returns the tokens before it and the error.
async function fails(cls, call, client, headers) {
  const stream = await call(client, { model: 'sim', stream: true }, { headers });
  let tokens = 0;
  const read = async () => {
    for await (const event of stream) if (isToken(event)) tokens++;
  };
  const e = await caught(cls, read());
  return [tokens, e];
}

describe('a stream that fails after its beginning raises', () => {
  for (const name of ['chat', 'completions', 'responses']) {
    const call = OPENAI_APIS[name];
    // Every node dies after 10 tokens. Two more nodes go on with a chat or a completion.
    const tokens = name === 'responses' ? 10 : 30;
    for (const fault of ['die_after=10', 'die_after=10,close=fin']) {
      test(`${name}: ${fault}`, async () => {
        const [n, e] = await fails(OpenAI.APIError, call, openaiClient(), { 'x-sim-fault': fault });
        assert.deepEqual([n, e.code, e.type], [tokens, 'backend_failed', 'upstream_error']);
      });
    }
    test(`${name}: deadline`, async () => {
      const [n, e] = await fails(OpenAI.APIError, call, openaiClient(), { 'x-cgn-deadline-ms': '700' });
      assert.ok(n > 0);
      assert.deepEqual([e.code, e.type], ['deadline_exceeded', 'timeout_error']);
    });
  }
  test('messages: die_after=10', async () => {
    const headers = { 'x-sim-fault': 'die_after=10' };
    const [n, e] = await fails(Anthropic.APIError, ANTHROPIC_APIS.messages, anthropicClient(), headers);
    assert.deepEqual([n, e.type, e.error.type], [10, 'api_error', 'error']);
    assert.ok(e.error.request_id);
  });
  test('messages: deadline', async () => {
    const headers = { 'x-cgn-deadline-ms': '700' };
    const [n, e] = await fails(Anthropic.APIError, ANTHROPIC_APIS.messages, anthropicClient(), headers);
    assert.ok(n > 0);
    assert.equal(e.type, 'timeout_error');
  });
});

describe('what router and SDK mend between them', () => {
  test('the SDK honours Retry-After', async () => {
    for (const engine of ENGINES) await setFault(engine, { status: 429, retry_after: 1, count: 1 });
    const begun = Date.now();
    const client = openaiClient(FLEET, { maxRetries: 1 });
    const answer = await client.chat.completions.create({ model: 'sim', messages, max_tokens: 1 });
    assert.ok(answer.choices.length);
    assert.ok(Date.now() - begun >= 990);
  });
  test('one engine of three fails', async () => {
    const client = openaiClient();
    for (const fault of [{ status: 500 }, { reset: true }]) {
      await setFault(ENGINES[1], fault);
      for (let i = 0; i < 12; i++) await OPENAI_APIS.chat(client, { model: 'sim', max_tokens: 1 });
      await clearFaults();
    }
  });
  test('a client that waited long enough', async () => {
    const options = { headers: { 'x-sim-fault': 'hang' }, timeout: 300 };
    await caught(OpenAI.APIConnectionTimeoutError, OPENAI_APIS.chat(openaiClient(), { model: 'sim' }, options));
    await caught(
      Anthropic.APIConnectionTimeoutError,
      ANTHROPIC_APIS.messages(anthropicClient(), { model: 'sim' }, options),
    );
  });
});

describe('keys', () => {
  test("the backend's own", () => OPENAI_APIS.embeddings(openaiClient(STRICT, { apiKey: 'wrong' }), { model: 'keyed' }));
  test("the client's, where forward_auth passes it on", async () => {
    await OPENAI_APIS.embeddings(openaiClient(STRICT, { apiKey: KEY }), { model: 'open' });
    const client = anthropicClient(STRICT, { apiKey: null, authToken: KEY });
    await ANTHROPIC_APIS.count_tokens(client, { model: 'open' });
  });
});
