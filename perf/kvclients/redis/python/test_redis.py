"""redis-py against a server of RESP at REDIS_HOST and REDIS_PORT, which is emptied."""

import os
import time
import unittest

import redis

BIG = os.urandom(1 << 20) * 4


def client(**more):
    return redis.Redis(host=os.environ["REDIS_HOST"], port=int(os.environ["REDIS_PORT"]), socket_timeout=30, **more)


class Strings:
    protocol = 2

    def setUp(self):
        self.r = client(protocol=self.protocol)
        self.r.flushall()
        self.addCleanup(self.r.close)

    def test_round_trips(self):
        for value in b"", b"x", b"a\r\nb\x00\xff", b"y" * 100_000, BIG:
            self.assertIs(self.r.set("k", value), True)
            self.assertEqual(self.r.get("k"), value)
            self.assertEqual(self.r.strlen("k"), len(value))
        self.assertIsNone(self.r.get("nothing"))
        self.assertEqual(self.r.mget("k", "nothing", "k"), [BIG, None, BIG])

    def test_conditions(self):
        self.assertIs(self.r.set("k", 1, nx=True), True)
        self.assertIsNone(self.r.set("k", 2, nx=True))
        self.assertEqual(self.r.get("k"), b"1")
        self.assertEqual(self.r.delete("k"), 1)
        self.assertEqual(self.r.exists("k", "k"), 0)
        self.assertIs(self.r.mset({"a": 1, "b": BIG}), True)
        self.assertEqual(self.r.delete("a", "b", "c"), 2)
        self.assertIs(self.r.setnx("a", 1), True)
        self.assertIs(self.r.setnx("a", 1), False)

    def test_expiry(self):
        self.r.set("k", BIG, ex=100)
        self.assertLessEqual(self.r.ttl("k"), 100)
        self.assertGreater(self.r.pttl("k"), 90_000)
        self.assertIs(self.r.persist("k"), True)
        self.assertEqual(self.r.ttl("k"), -1)
        self.assertIs(self.r.expire("k", 200), True)
        self.assertIs(self.r.pexpire("k", 1), True)
        end = time.monotonic() + 10
        while self.r.exists("k") and time.monotonic() < end:
            pass
        self.assertIsNone(self.r.get("k"))
        self.assertEqual(self.r.ttl("k"), -2)

    def test_scan(self):
        names = {b"key:%d" % i for i in range(300)}
        with self.r.pipeline() as p:
            p.set("x", 1)
            p.delete("x")
            self.assertEqual(p.execute(), [True, 1])
        with self.r.pipeline(transaction=False) as p:
            for n in names:
                p.set(n, n)
            self.assertEqual(p.execute(), [True] * 300)
        self.assertEqual(self.r.dbsize(), 300)
        self.assertEqual(set(self.r.scan_iter(match="key:*", count=20)), names)
        self.assertEqual(set(self.r.keys("key:1?")), {b"key:%d" % i for i in range(10, 20)})
        other = client(protocol=self.protocol, db=1)
        self.addCleanup(other.close)
        self.assertEqual(other.dbsize(), 0)
        self.assertIs(self.r.flushdb(), True)
        self.assertEqual(self.r.dbsize(), 0)

    def test_server(self):
        self.assertIs(self.r.ping(), True)
        self.assertEqual(self.r.echo("x"), b"x")
        self.assertEqual(self.r.info("persistence")["loading"], 0)
        self.assertEqual(self.r.config_get("save"), {"save": ""})
        self.assertIs(self.r.client_setname("me"), True)
        self.assertEqual(self.r.client_getname(), "me" if isinstance(self.r.client_getname(), str) else b"me")
        self.assertGreater(self.r.client_id(), 0)
        with self.assertRaisesRegex(redis.ResponseError, "unknown command"):
            self.r.execute_command("LPUSH", "k", "v")
        with self.assertRaisesRegex(redis.ResponseError, "wrong number of arguments"):
            self.r.execute_command("GET")


class RESP2(Strings, unittest.TestCase):
    protocol = 2


class RESP3(Strings, unittest.TestCase):
    protocol = 3


if __name__ == "__main__":
    unittest.main()
