// ioredis against a server of RESP at REDIS_HOST and REDIS_PORT, which is emptied.
const assert = require('node:assert');
const {randomBytes} = require('node:crypto');
const {test} = require('node:test');
const {Redis} = require('ioredis');

const big = Buffer.alloc(4 << 20, randomBytes(4096));

for (const protocol of [2, 3]) {
	test(`RESP${protocol}`, async t => {
		const redis = new Redis({host: process.env.REDIS_HOST, port: +process.env.REDIS_PORT, protocol, retryStrategy: null});
		t.after(() => redis.disconnect());
		await redis.flushall();
		await t.test('round trips', async () => {
			for (const value of [Buffer.alloc(0), Buffer.from('a\r\nb\0\xff', 'latin1'), big]) {
				assert.equal(await redis.set('k', value), 'OK');
				assert.ok(value.equals(await redis.getBuffer('k')));
			}
			assert.equal(await redis.get('nothing'), null);
			const [a, b] = await redis.mgetBuffer('k', 'nothing');
			assert.ok(a.equals(big) && b === null);
		});
		await t.test('conditions and expiry', async () => {
			assert.equal(await redis.set('k', 1, 'EX', 100, 'NX'), null);
			assert.equal(await redis.set('k', 1, 'EX', 100), 'OK');
			assert.ok(await redis.ttl('k') <= 100);
			assert.equal(await redis.del('k', 'nothing'), 1);
			assert.equal(await redis.exists('k'), 0);
		});
		await t.test('pipeline and scan', async () => {
			const pipeline = redis.pipeline();
			for (let i = 0; i < 300; i++) pipeline.set(`key:${i}`, `${i}`);
			assert.equal((await pipeline.exec()).filter(([e, r]) => e === null && r === 'OK').length, 300);
			const found = new Set();
			for await (const keys of redis.scanStream({match: 'key:*', count: 20})) keys.forEach(k => found.add(k));
			assert.equal(found.size, 300);
			assert.equal(await redis.dbsize(), 300);
		});
		await t.test('errors', async () => {
			await assert.rejects(redis.call('NOSUCH', 'a'), /ERR unknown command/);
			await assert.rejects(redis.lpush('k', 'v'), /ERR unknown command/);
		});
	});
}
