// The fleet that run.sh brought up, as the suites see it.
'use strict';

const assert = require('node:assert/strict');
const fs = require('node:fs');
const { beforeEach } = require('node:test');
const { setTimeout: pause } = require('node:timers/promises');

const OpenAI = require('openai').default;
const Anthropic = require('@anthropic-ai/sdk').default;

const FLEET = process.env.CGN_SDK_FLEET; // three simulated engines behind agents, model "sim"
const STRICT = process.env.CGN_SDK_STRICT; // one engine under the names of run.sh, small limits
const ENGINES = process.env.CGN_SDK_ENGINES.split(','); // of the fleet
const LOCKED = process.env.CGN_SDK_LOCKED; // the strict router's engine
const CASES = JSON.parse(fs.readFileSync(process.env.CGN_SDK_CASES, 'utf8'));
const RETRIES = JSON.parse(fs.readFileSync(process.env.CGN_SDK_RETRIES, 'utf8'));
const KEY = 'sesame'; // that LOCKED demands
const GUARDED = process.env.CGN_SDK_GUARDED; // LOCKED behind API keys
const KEYS = JSON.parse(process.env.CGN_SDK_KEYS); // of GUARDED, by name

const openaiClient = (router = FLEET, options = {}) =>
  new OpenAI({ baseURL: `${router}/v1`, apiKey: 'none', maxRetries: 0, timeout: 30_000, ...options });
const anthropicClient = (router = FLEET, options = {}) =>
  new Anthropic({ baseURL: router, apiKey: 'none', maxRetries: 0, timeout: 30_000, ...options });

const getJSON = async (url) => (await fetch(url)).json();

// setFault makes fault (see /sim/fault of the engine) strike the engine's next requests.
async function setFault(engine, fault) {
  const answer = await fetch(`${engine}/sim/fault`, { method: 'POST', body: JSON.stringify(fault) });
  assert.equal(answer.status, 204);
}

async function clearFaults() {
  for (const engine of [...ENGINES, LOCKED]) await fetch(`${engine}/sim/fault`, { method: 'DELETE' });
}

// guardedRequests is how many requests GUARDED has answered, once it has counted those that have
// just ended. Those for completions are left out: held streams end at any time.
async function guardedRequests() {
  for (let was = -1, now = await guardedCounts(); ; was = now, now = await guardedCounts()) {
    if (was === now) return now;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

async function guardedCounts() {
  const answer = await fetch(process.env.CGN_SDK_METRICS, { headers: { 'x-api-key': KEYS.reader } });
  const counts = /^cgn_router_requests_total\{(?!.*api="completions")/;
  const lines = (await answer.text()).split('\n').filter((line) => counts.test(line));
  return lines.reduce((sum, line) => sum + Number(line.split(' ').at(-1)), 0);
}

async function engineSum(field) {
  const stats = await Promise.all(ENGINES.map((engine) => getJSON(`${engine}/sim/stats`)));
  return stats.reduce((sum, s) => sum + s[field], 0);
}

async function poll(condition, ms, what) {
  for (const end = Date.now() + ms; !(await condition()); await pause(10)) {
    assert.ok(Date.now() < end, `not within ${ms} ms: ${what}`);
  }
}

const fleet = openaiClient();
const strict = openaiClient(STRICT);

// settle waits until every node takes requests again and its failures of before are outweighed.
async function settle() {
  const nodes = ENGINES.map((_, i) => [fleet, 'sim', { 'x-cgn-node': `sim-${i + 1}` }]);
  for (const [client, model, headers] of [...nodes, [strict, 'keyed', {}], [strict, 'narrow', {}]]) {
    const answers = async () => {
      try {
        for (let i = 0; i < 2; i++) await client.completions.create({ model, prompt: 'settle', max_tokens: 1 }, { headers });
        return true;
      } catch (e) {
        if (e.status === 503) return false;
        throw e;
      }
    };
    await poll(answers, 15_000, `${model} answers`);
  }
}

// holdStreams keeps one stream of the strict router open for each model. It returns a function that
// ends them.
async function holdStreams(models) {
  const streams = [];
  for (const model of models) {
    const stream = await strict.completions.create({ model, prompt: 'hold', max_tokens: 4000, stream: true });
    streams.push(stream);
    await stream[Symbol.asyncIterator]().next();
  }
  return () => streams.forEach((stream) => stream.controller.abort());
}

// engineNotices calls leave, and then waits until some engine has seen its client go and stopped
// computing.
async function engineNotices(leave) {
  const before = await engineSum('aborted');
  await leave();
  await poll(
    async () => (await engineSum('aborted')) > before && (await engineSum('running')) === 0,
    2000,
    'the engine notices that its client has left',
  );
}

async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

// caught is what promise is rejected with, which must be an instance of cls.
async function caught(cls, promise) {
  const error = await promise.then(
    () => assert.fail('no error'),
    (e) => e,
  );
  assert.ok(error instanceof cls, `${error?.constructor?.name}: ${error?.message}, not ${cls.name}`);
  return error;
}

const classOf = (sdk, status) =>
  ({
    400: sdk.BadRequestError, 401: sdk.AuthenticationError, 403: sdk.PermissionDeniedError, 404: sdk.NotFoundError,
    409: sdk.ConflictError, 413: sdk.APIError, 422: sdk.UnprocessableEntityError, 429: sdk.RateLimitError,
  })[status] ?? sdk.InternalServerError;

// healthyFleet lets every test of a file begin with a healthy fleet.
function healthyFleet() {
  beforeEach(async () => {
    await clearFaults();
    await settle();
  });
}

const words = (n) => Array.from({ length: n }, (_, i) => `word${i}`).join(' ');

const WEATHER = {
  type: 'object',
  properties: { city: { type: 'string' }, days: { type: 'integer' } },
  required: ['city', 'days'],
};

module.exports = {
  OpenAI, Anthropic, FLEET, STRICT, GUARDED, ENGINES, CASES, RETRIES, KEY, KEYS, WEATHER, openaiClient, anthropicClient,
  setFault, clearFaults, settle, guardedRequests, holdStreams, engineNotices, collect, caught, classOf, healthyFleet,
  words,
};
