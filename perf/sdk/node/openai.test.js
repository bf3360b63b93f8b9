// openai-node against the fleet: every API that the router serves.
'use strict';

const assert = require('node:assert/strict');
const { describe, test } = require('node:test');
const { OpenAI, STRICT, WEATHER, openaiClient, engineNotices, collect, caught, healthyFleet, words } = require('./fleet.js');

const client = openaiClient();
const messages = [{ role: 'user', content: `Tell me about rivers. ${words(40)}` }];
const chatTool = { type: 'function', function: { name: 'get_weather', description: 'Tells the weather', parameters: WEATHER } };
const flatTool = { type: 'function', name: 'get_weather', parameters: WEATHER, strict: false };
const unique = (text) => `${text} ${process.hrtime.bigint()}`;
const chat = (body, options) => client.chat.completions.create({ model: 'sim', messages, ...body }, options);

healthyFleet();

describe('models', () => {
  test('list', async () => {
    const models = await collect(await client.models.list());
    assert.deepEqual(models.map((m) => m.id), ['sim']);
  });
  test('union of backends', async () => {
    const models = await collect(await openaiClient(STRICT).models.list());
    assert.deepEqual(new Set(models.map((m) => m.id)), new Set(['keyed', 'narrow', 'open']));
  });
  test('retrieve', async () => {
    assert.equal((await client.models.retrieve('sim')).object, 'model');
    const e = await caught(OpenAI.NotFoundError, client.models.retrieve('nope'));
    assert.equal(e.code, 'model_not_found');
  });
});

describe('chat', () => {
  test('create', async () => {
    const answer = await chat({ max_tokens: 8 });
    assert.ok(answer.choices[0].message.content);
    assert.equal(answer.choices[0].finish_reason, 'length');
    assert.equal(answer.usage.completion_tokens, 8);
  });
  test('a repeated prompt is cached', async () => {
    const body = { model: 'sim', messages: [{ role: 'user', content: unique(words(200)) }], max_tokens: 2 };
    const first = await client.chat.completions.create(body).withResponse();
    const second = await client.chat.completions.create(body).withResponse();
    assert.equal(second.response.headers.get('x-cgn-node'), first.response.headers.get('x-cgn-node'));
    assert.ok(second.data.usage.prompt_tokens_details.cached_tokens > 0.8 * second.data.usage.prompt_tokens);
  });
  test('request id', async () => {
    const answer = await chat({ max_tokens: 1 }, { headers: { 'x-request-id': 'suite-18' } });
    assert.equal(answer._request_id, 'suite-18');
  });
  test('stream with usage', async () => {
    const chunks = await collect(await chat({ max_tokens: 9, stream: true, stream_options: { include_usage: true } }));
    assert.equal(chunks.at(-1).usage.completion_tokens, 9);
    assert.deepEqual(chunks.at(-1).choices, []);
    assert.equal(chunks.filter((c) => c.choices[0]?.delta.content).length, 9);
  });
  test('stream without usage', async () => {
    for await (const chunk of await chat({ max_tokens: 5, stream: true })) {
      assert.equal(chunk.choices.length, 1, 'a usage chunk that nobody asked for');
      assert.equal(chunk.usage ?? null, null);
    }
  });
  test('stream helper', async () => {
    const runner = client.chat.completions.stream({ model: 'sim', messages, max_tokens: 9 });
    const final = await runner.finalChatCompletion();
    assert.equal(final.choices[0].finish_reason, 'length');
    assert.ok(final.choices[0].message.content);
  });
  test('logprobs', async () => {
    const body = { max_tokens: 4, logprobs: true, top_logprobs: 3 };
    const whole = (await chat(body)).choices[0].logprobs.content;
    const stream = await collect(await chat({ ...body, stream: true }));
    const streamed = stream.flatMap((c) => c.choices[0]?.logprobs?.content ?? []);
    for (const content of [whole, streamed]) {
      assert.equal(content.length, 4);
      assert.ok(content.every((t) => t.logprob <= 0 && t.top_logprobs.length === 3));
    }
  });
});

describe('tools', () => {
  test('call', async () => {
    const answer = await chat({ tools: [chatTool], tool_choice: 'required' });
    const call = answer.choices[0].message.tool_calls[0];
    assert.equal(answer.choices[0].finish_reason, 'tool_calls');
    assert.equal(call.function.name, 'get_weather');
    assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)).sort(), ['city', 'days']);
  });
  test('stream', async () => {
    const stream = await chat({ tools: [chatTool], tool_choice: 'required', stream: true });
    let name = '';
    let args = '';
    let reason = null;
    for await (const chunk of stream) {
      reason = chunk.choices[0].finish_reason ?? reason;
      for (const call of chunk.choices[0].delta.tool_calls ?? []) {
        name += call.function.name ?? '';
        args += call.function.arguments ?? '';
      }
    }
    assert.deepEqual([name, reason], ['get_weather', 'tool_calls']);
    assert.deepEqual(Object.keys(JSON.parse(args)).sort(), ['city', 'days']);
  });
  test('stream helper', async () => {
    const runner = client.chat.completions.stream({ model: 'sim', messages, tools: [chatTool], tool_choice: 'required' });
    const final = await runner.finalChatCompletion();
    assert.equal(final.choices[0].message.tool_calls[0].function.name, 'get_weather');
  });
  test('responses stream', async () => {
    const stream = await client.responses.create({
      model: 'sim', input: 'call the tool', tools: [flatTool], tool_choice: 'required', stream: true,
    });
    const events = await collect(stream);
    const deltas = events.filter((e) => e.type === 'response.function_call_arguments.delta').map((e) => e.delta);
    const call = events.at(-1).response.output[0];
    assert.equal(call.name, 'get_weather');
    assert.equal(deltas.join(''), call.arguments);
  });
});

describe('completions and embeddings', () => {
  test('create', async () => {
    const answer = await client.completions.create({ model: 'sim', prompt: ['one', 'two'], max_tokens: 3, logprobs: 2 });
    assert.deepEqual(answer.choices.map((c) => c.index), [0, 1]);
    assert.equal(answer.choices[0].logprobs.tokens.length, 3);
    assert.equal(answer.usage.completion_tokens, 6);
  });
  test('stream with usage', async () => {
    const chunks = await collect(
      await client.completions.create({
        model: 'sim', prompt: 'Once upon', max_tokens: 6, stream: true, stream_options: { include_usage: true },
      }),
    );
    assert.equal(chunks.at(-1).usage.completion_tokens, 6);
    assert.equal(chunks.filter((c) => c.choices[0]?.text).length, 6);
  });
  test('embeddings', async () => {
    const pin = { headers: { 'x-cgn-node': 'sim-1' } };
    const decoded = await client.embeddings.create({ model: 'sim', input: ['one', 'two'] }, pin);
    const plain = await client.embeddings.create({ model: 'sim', input: ['one', 'two'], encoding_format: 'float' }, pin);
    assert.equal(decoded.data.length, 2);
    decoded.data[1].embedding.forEach((x, i) => assert.ok(Math.abs(x - plain.data[1].embedding[i]) < 1e-5));
  });
});

describe('responses', () => {
  test('create', async () => {
    const answer = await client.responses.create({ model: 'sim', input: 'Hello', max_output_tokens: 7 });
    assert.equal(answer.status, 'incomplete');
    assert.ok(answer.output_text);
    assert.equal(answer.usage.output_tokens, 7);
  });
  test('stream', async () => {
    const events = await collect(
      await client.responses.create({ model: 'sim', input: 'Hello', max_output_tokens: 7, stream: true }),
    );
    assert.equal(events[0].type, 'response.created');
    assert.deepEqual(events.map((e) => e.sequence_number), events.map((_, i) => i));
    const deltas = events.filter((e) => e.type === 'response.output_text.delta').map((e) => e.delta);
    assert.equal(deltas.join(''), events.at(-1).response.output[0].content[0].text);
  });
  test('stream helper', async () => {
    const runner = client.responses.stream({ model: 'sim', input: 'Hello' });
    assert.equal((await runner.finalResponse()).status, 'completed');
  });
  test('retrieve and delete', async () => {
    const made = await client.responses.create({ model: 'sim', input: unique('Keep this') }).withResponse();
    for (let i = 0; i < 4; i++) {
      const again = await client.responses.retrieve(made.data.id).withResponse();
      assert.equal(again.data.output_text, made.data.output_text);
      assert.equal(again.response.headers.get('x-cgn-node'), made.response.headers.get('x-cgn-node'));
    }
    await client.responses.delete(made.data.id);
    await caught(OpenAI.NotFoundError, client.responses.retrieve(made.data.id));
  });
  test('unknown response', async () => {
    const e = await caught(OpenAI.NotFoundError, client.responses.retrieve('resp_nobody'));
    assert.equal(e.code, 'response_not_found');
  });
  test('previous response', async () => {
    const first = await client.responses.create({ model: 'sim', input: unique('I like rivers') }).withResponse();
    for (let i = 0; i < 4; i++) {
      const body = { model: 'sim', input: 'Which?', previous_response_id: first.data.id };
      const second = await client.responses.create(body).withResponse();
      assert.equal(second.response.headers.get('x-cgn-node'), first.response.headers.get('x-cgn-node'));
    }
    const body = { model: 'sim', input: 'Which?', previous_response_id: 'resp_nobody' };
    assert.equal((await caught(OpenAI.NotFoundError, client.responses.create(body))).code, 'response_not_found');
  });
});

describe('cancel', () => {
  test('break out of a chat stream', async () => {
    const stream = await chat({ max_tokens: 4000, stream: true });
    await engineNotices(async () => {
      let n = 0;
      for await (const _ of stream) if (++n === 3) break;
    });
  });
  test('abort a responses stream', async () => {
    const stream = await client.responses.create({ model: 'sim', input: 'Hello', max_output_tokens: 4000, stream: true });
    await engineNotices(async () => {
      let n = 0;
      for await (const _ of stream) if (++n === 6) stream.controller.abort();
    });
  });
  test('time out', () =>
    engineNotices(() => caught(OpenAI.APIConnectionTimeoutError, chat({ max_tokens: 4000 }, { timeout: 400 }))));
});
