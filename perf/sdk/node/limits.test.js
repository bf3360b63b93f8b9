// The limits of the router: headers, error classes, and when the SDKs retry.
'use strict';

const assert = require('node:assert/strict');
const { test } = require('node:test');

const OpenAI = require('openai').default;
const Anthropic = require('@anthropic-ai/sdk').default;
const { STRICT, openaiClient, anthropicClient } = require('./fleet');

const messages = [{ role: 'user', content: 'Hello there' }];

// sdks gives for each SDK its class, a call, and a client that counts the requests that it sends.
function sdks(maxRetries) {
  return [
    ['openai', OpenAI, openaiClient, (c, body) => c.chat.completions.create({ messages, ...body })],
    ['anthropic', Anthropic, anthropicClient, (c, body) => c.messages.create({ messages, ...body })],
  ].map(([name, sdk, make, call]) => {
    const sent = { n: 0 };
    const counting = (...args) => ((sent.n += 1), fetch(...args));
    return { name, sdk, call, sent, client: make(STRICT, { maxRetries, fetch: counting }) };
  });
}

// refused asks until a limit refuses, and returns the error.
async function refused({ sdk, call, client }, body) {
  for (let i = 0; i < 100; i++) {
    try {
      await call(client, body);
    } catch (e) {
      assert.ok(e instanceof sdk.RateLimitError, String(e));
      return e;
    }
  }
  return assert.fail(`${body.model} is not limited`);
}

for (const once of sdks(0)) {
  test(`${once.name}: retries when there will be room`, async () => {
    const e = await refused(once, { model: 'paced', max_tokens: 1 });
    assert.ok(Number(e.headers.get('retry-after-ms')) <= 2000);
    const again = sdks(2).find(({ name }) => name === once.name);
    await again.call(again.client, { model: 'paced', max_tokens: 1 });
    assert.ok(again.sent.n === 2 || again.sent.n === 3, `${again.sent.n} requests`);
  });
}

for (const [model, max_tokens, code] of [['spent', 400, 'insufficient_quota'], ['tight', 100, 'rate_limit_exceeded']]) {
  for (const s of sdks(2)) {
    test(`${s.name}: no retry of ${code} (${model})`, async () => {
      const e = await refused(s, { model, max_tokens });
      if (s.sdk === OpenAI) assert.equal(e.code, code);
      assert.equal(e.headers.get('x-should-retry'), 'false');
      s.sent.n = 0;
      await refused(s, { model, max_tokens });
      assert.equal(s.sent.n, 1);
    });
  }
}
