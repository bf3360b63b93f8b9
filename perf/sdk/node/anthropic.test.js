// The Anthropic SDK for TypeScript against the fleet: /v1/messages.
'use strict';

const assert = require('node:assert/strict');
const { describe, test } = require('node:test');
const { WEATHER, anthropicClient, engineNotices, collect, healthyFleet, words } = require('./fleet.js');

const client = anthropicClient();
const messages = [{ role: 'user', content: `Tell me about rivers. ${words(40)}` }];
const tools = [{ name: 'get_weather', description: 'Tells the weather', input_schema: WEATHER }];

healthyFleet();

describe('messages', () => {
  test('create', async () => {
    const answer = await client.messages.create({ model: 'sim', messages, max_tokens: 8, system: 'Be brief.' });
    assert.deepEqual([answer.type, answer.role, answer.stop_reason], ['message', 'assistant', 'max_tokens']);
    assert.ok(answer.content[0].text);
    assert.equal(answer.usage.output_tokens, 8);
  });
  test('a repeated prompt is cached', async () => {
    const content = `${process.hrtime.bigint()} ${words(200)}`;
    const body = { model: 'sim', messages: [{ role: 'user', content }], max_tokens: 2 };
    await client.messages.create(body);
    const { usage } = await client.messages.create(body);
    assert.ok(usage.cache_read_input_tokens > usage.input_tokens);
  });
  test('stream', async () => {
    const events = await collect(await client.messages.create({ model: 'sim', messages, max_tokens: 8, stream: true }));
    assert.equal(events[0].type, 'message_start');
    assert.equal(events.at(-1).type, 'message_stop');
    assert.equal(events.filter((e) => e.type === 'content_block_delta').length, 8);
  });
  test('stream helper', async () => {
    const final = await client.messages.stream({ model: 'sim', messages, max_tokens: 8 }).finalMessage();
    assert.ok(final.content[0].text);
    assert.equal(final.usage.output_tokens, 8);
  });
  test('tool stream', async () => {
    const body = { model: 'sim', messages, max_tokens: 200, tools, tool_choice: { type: 'any' } };
    const final = await client.messages.stream(body).finalMessage();
    assert.deepEqual([final.stop_reason, final.content[0].name], ['tool_use', 'get_weather']);
    assert.deepEqual(Object.keys(final.content[0].input).sort(), ['city', 'days']);
  });
  test('count tokens', async () => {
    const counted = await client.messages.countTokens({ model: 'sim', messages });
    const { usage } = await client.messages.create({ model: 'sim', messages, max_tokens: 1 });
    assert.equal(counted.input_tokens, usage.input_tokens + (usage.cache_read_input_tokens ?? 0));
  });
  test('cancel', async () => {
    const stream = await client.messages.create({ model: 'sim', messages, max_tokens: 4000, stream: true });
    await engineNotices(async () => {
      let n = 0;
      for await (const _ of stream) if (++n === 4) break;
    });
  });
});
