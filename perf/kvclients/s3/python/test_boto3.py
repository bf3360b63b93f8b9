"""Tests boto3 against the S3 endpoint of S3_ENDPOINT, S3_ACCESS_KEY, S3_SECRET_KEY and, with https,
S3_CA_FILE. Over https, boto3's bodies are aws-chunked with a checksum in a trailer."""

import hashlib
import io
import os
import random
import socket
import ssl
import threading
import unittest
import urllib.parse
import urllib.request
import uuid

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

ENDPOINT = os.environ["S3_ENDPOINT"]
ACCESS = os.environ.get("S3_ACCESS_KEY", "test")
SECRET = os.environ.get("S3_SECRET_KEY", "test")
CA = os.environ.get("S3_CA_FILE")
RUN = uuid.uuid4().hex[:8]


def client(secret=SECRET, endpoint=ENDPOINT, **config):
    config.setdefault("retries", {"max_attempts": 1})
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=ACCESS,
                        aws_secret_access_key=secret, verify=CA, config=Config(**config))


def data(n, seed=1):
    return random.Random(seed).randbytes(n)


class Boto3(unittest.TestCase):
    def setUp(self):
        self.s3 = client()
        self.bucket = "b" + RUN + self._testMethodName[5:].replace("_", "-")[:30]
        self.s3.create_bucket(Bucket=self.bucket)
        self.addCleanup(self.empty)

    def empty(self):
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        keys = [{"Key": o["Key"]} for p in pages for o in p.get("Contents", [])]
        for i in range(0, len(keys), 1000):
            out = self.s3.delete_objects(Bucket=self.bucket, Delete={"Objects": keys[i:i + 1000]})
            self.assertEqual(len(out["Deleted"]), len(keys[i:i + 1000]))
        self.s3.delete_bucket(Bucket=self.bucket)

    def code(self, want, call, **args):
        with self.assertRaises(ClientError) as caught:
            call(**args)
        self.assertEqual(caught.exception.response["Error"]["Code"], want)
        return caught.exception.response

    def test_round_trip(self):
        for n in (0, 1, 4096, 2 << 20, 20 << 20):
            body = data(n)
            put = self.s3.put_object(Bucket=self.bucket, Key="k", Body=body, ContentType="a/b", Metadata={"Layer": "3"})
            got = self.s3.get_object(Bucket=self.bucket, Key="k", ChecksumMode="ENABLED")
            self.assertEqual(got["Body"].read(), body)
            self.assertEqual((got["ETag"], got["ContentType"], got["Metadata"]), (put["ETag"], "a/b", {"layer": "3"}))
            head = self.s3.head_object(Bucket=self.bucket, Key="k")
            self.assertEqual((head["ContentLength"], head["ETag"], head["Metadata"]), (n, put["ETag"], {"layer": "3"}))

    def test_keys(self):
        keys = ["meta-llama/Llama-3.1@1@0@abc@bfloat16", "a b+c&d=e;f%20g", "mødel/日本", "~.-_!'()*", "x//y", "k?z#"]
        for k in keys:
            self.s3.put_object(Bucket=self.bucket, Key=k, Body=k.encode())
        for k in keys:
            self.assertEqual(self.s3.get_object(Bucket=self.bucket, Key=k)["Body"].read(), k.encode())
        listed = [o["Key"] for o in self.s3.list_objects_v2(Bucket=self.bucket)["Contents"]]
        self.assertEqual(listed, sorted(keys, key=str.encode))

    def test_misses(self):
        self.code("NoSuchKey", self.s3.get_object, Bucket=self.bucket, Key="none")
        self.code("404", self.s3.head_object, Bucket=self.bucket, Key="none")
        self.s3.delete_object(Bucket=self.bucket, Key="none")

    def test_ranges_and_conditions(self):
        body = data(100000)
        tag = self.s3.put_object(Bucket=self.bucket, Key="k", Body=body)["ETag"]
        got = self.s3.get_object(Bucket=self.bucket, Key="k", Range="bytes=10-99", IfMatch=tag)
        self.assertEqual((got["Body"].read(), got["ContentRange"]), (body[10:100], "bytes 10-99/100000"))
        self.assertEqual(self.s3.get_object(Bucket=self.bucket, Key="k", Range="bytes=-7")["Body"].read(), body[-7:])
        self.code("InvalidRange", self.s3.get_object, Bucket=self.bucket, Key="k", Range="bytes=100000-")
        self.code("PreconditionFailed", self.s3.get_object, Bucket=self.bucket, Key="k", IfMatch='"other"')
        self.code("PreconditionFailed", self.s3.put_object, Bucket=self.bucket, Key="k", Body=b"x", IfNoneMatch="*")

    def test_checksums(self):
        for name in ("CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"):
            put = self.s3.put_object(Bucket=self.bucket, Key=name, Body=data(300000), ChecksumAlgorithm=name)
            got = self.s3.get_object(Bucket=self.bucket, Key=name, ChecksumMode="ENABLED")
            self.assertEqual(got["Checksum" + name], put["Checksum" + name])
            self.assertEqual(got["Body"].read(), data(300000))
        self.code("BadDigest", self.s3.put_object, Bucket=self.bucket, Key="k", Body=b"x", ChecksumCRC32="AAAAAA==")

    def test_signed_payloads(self):
        for signed in (True, False):
            s3 = client(s3={"payload_signing_enabled": signed})
            s3.put_object(Bucket=self.bucket, Key="k", Body=data(100000))
            self.assertEqual(s3.get_object(Bucket=self.bucket, Key="k")["Body"].read(), data(100000))

    def test_stream_without_length(self):
        class Pipe(io.RawIOBase):
            def __init__(self, b):
                self.b = io.BytesIO(b)

            def read(self, n=-1):
                return self.b.read(n)

            def readable(self):
                return True

        self.s3.upload_fileobj(Pipe(data(30 << 20)), self.bucket, "k")
        self.assertEqual(self.s3.get_object(Bucket=self.bucket, Key="k")["Body"].read(), data(30 << 20))

    def test_transfer(self):
        config = TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=8 << 20, max_concurrency=8)
        body = data(50 << 20)
        self.s3.upload_fileobj(io.BytesIO(body), self.bucket, "big", Config=config, ExtraArgs={"Metadata": {"a": "b"}})
        head = self.s3.head_object(Bucket=self.bucket, Key="big")
        self.assertEqual((head["ContentLength"], head["Metadata"]), (len(body), {"a": "b"}))
        self.assertTrue(head["ETag"].endswith('-7"'), head["ETag"])
        out = io.BytesIO()
        self.s3.download_fileobj(self.bucket, "big", out, Config=config)
        self.assertEqual(hashlib.sha256(out.getvalue()).digest(), hashlib.sha256(body).digest())

    def test_multipart_by_hand(self):
        up = self.s3.create_multipart_upload(Bucket=self.bucket, Key="k")["UploadId"]
        args = {"Bucket": self.bucket, "Key": "k", "UploadId": up}
        parts = [{"PartNumber": n, "ETag": self.s3.upload_part(PartNumber=n, Body=data(1000 + n, n), **args)["ETag"]} for n in (2, 1, 3)]
        self.code("InvalidPartOrder", self.s3.complete_multipart_upload, MultipartUpload={"Parts": parts}, **args)
        parts.sort(key=lambda p: p["PartNumber"])
        self.s3.complete_multipart_upload(MultipartUpload={"Parts": parts}, **args)
        self.assertEqual(self.s3.get_object(Bucket=self.bucket, Key="k")["Body"].read(), b"".join(data(1000 + n, n) for n in (1, 2, 3)))
        other = self.s3.create_multipart_upload(Bucket=self.bucket, Key="k")["UploadId"]
        self.s3.abort_multipart_upload(Bucket=self.bucket, Key="k", UploadId=other)
        self.code("NoSuchUpload", self.s3.abort_multipart_upload, Bucket=self.bucket, Key="k", UploadId=other)

    def test_paginator(self):
        keys = sorted(f"{i % 7}/{i}" for i in range(2300))
        threads = [threading.Thread(target=lambda part: [self.s3.put_object(Bucket=self.bucket, Key=k, Body=b"") for k in part], args=(keys[i::8],)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for api in ("list_objects_v2", "list_objects"):
            pages = list(self.s3.get_paginator(api).paginate(Bucket=self.bucket))
            self.assertEqual(len(pages), 3)
            self.assertEqual([o["Key"] for p in pages for o in p["Contents"]], keys)
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Delimiter="/", PaginationConfig={"PageSize": 3})
        self.assertEqual([c["Prefix"] for p in pages for c in p["CommonPrefixes"]], [f"{i}/" for i in range(7)])
        self.assertIn(self.bucket, [b["Name"] for b in self.s3.list_buckets()["Buckets"]])


    @unittest.skipIf(SECRET == "test", "the server has no keys")
    def test_wrong_secret(self):
        self.code("SignatureDoesNotMatch", client(secret="wrong").list_objects_v2, Bucket=self.bucket)
        self.code("SignatureDoesNotMatch", client(secret="wrong").put_object, Bucket=self.bucket, Key="k", Body=b"x")

    def test_virtual_host(self):
        url = urllib.parse.urlparse(ENDPOINT)
        if url.scheme == "https":
            self.skipTest("no certificate is for names below localhost")
        real = socket.getaddrinfo
        self.addCleanup(setattr, socket, "getaddrinfo", real)
        socket.getaddrinfo = lambda host, *args, **kw: real(url.hostname if host.endswith(".localhost") else host, *args, **kw)
        endpoint = f"{url.scheme}://localhost:{url.port}"
        s3 = client(endpoint=endpoint, s3={"addressing_style": "virtual"})
        s3.put_object(Bucket=self.bucket, Key="v/k", Body=b"virtual")
        self.assertEqual(self.s3.get_object(Bucket=self.bucket, Key="v/k")["Body"].read(), b"virtual")


if __name__ == "__main__":
    unittest.main()
