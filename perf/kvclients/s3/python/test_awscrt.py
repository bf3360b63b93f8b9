"""Tests awscrt's S3 client, which LMCache's s3:// connector uses. It names the bucket only in the
Host header, which here is the address itself. It reads ranges in parallel and writes in parts."""

import io
import os
import random
import unittest
import urllib.parse
import uuid

from awscrt import auth, http, io as crtio, s3

HOST = urllib.parse.urlparse(os.environ["S3_ENDPOINT"]).netloc
ACCESS = os.environ.get("S3_ACCESS_KEY", "test")
SECRET = os.environ.get("S3_SECRET_KEY", "test")
RUN = uuid.uuid4().hex[:8]


@unittest.skipIf(os.environ["S3_ENDPOINT"].startswith("https"), "LMCache reaches a local server without TLS")
class CRT(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bootstrap = crtio.ClientBootstrap.get_or_create_static_default()
        provider = auth.AwsCredentialsProvider.new_static(ACCESS, SECRET)
        config = s3.create_default_s3_signing_config(region="us-east-1", credential_provider=provider)
        cls.client = s3.S3Client(bootstrap=cls.bootstrap, region="us-east-1", signing_config=config, tls_mode=s3.S3RequestTlsMode.DISABLED,
                                 part_size=8 << 20, multipart_upload_threshold=8 << 20)

    def request(self, method, key, kind, body=None, **more):
        headers = http.HttpHeaders([("Host", HOST)])
        stream = None
        if body is not None:
            headers.add("Content-Length", str(len(body)))
            headers.add("Content-Type", "application/octet-stream")
            stream = io.BytesIO(body)
        out, seen = {}, {}

        def on_body(chunk, offset, **_):
            out[offset] = bytes(chunk)

        def on_headers(status_code, headers, **_):
            seen.update(status=status_code, headers=dict(headers))

        r = self.client.make_request(type=kind, request=http.HttpRequest(method, "/" + urllib.parse.quote(key, safe=""), headers, stream),
                                     on_body=on_body, on_headers=on_headers, **more)
        try:
            r.finished_future.result(30)
        except Exception as e:  # the status says which
            seen["error"] = e
            seen["status"] = getattr(e, "status_code", None)
        return seen, b"".join(out[k] for k in sorted(out))

    def test_round_trip(self):
        for n in (1, 2 << 20, 33 << 20):
            body, key = random.Random(n).randbytes(n), f"meta/Llama@1@0@{RUN}{n:x}@bfloat16"
            seen, _ = self.request("GET", key, s3.S3RequestType.GET_OBJECT)
            self.assertEqual(seen["status"], 404, seen)
            seen, _ = self.request("PUT", key, s3.S3RequestType.PUT_OBJECT, body)
            self.assertEqual(seen.get("status"), 200, seen)
            seen, got = self.request("GET", key, s3.S3RequestType.GET_OBJECT)
            self.assertIn(seen["status"], (200, 206), seen)
            self.assertEqual(got, body)

    def test_checksums(self):
        for algorithm in (s3.S3ChecksumAlgorithm.CRC32C, s3.S3ChecksumAlgorithm.CRC32, s3.S3ChecksumAlgorithm.CRC64NVME):
            for n in (1 << 20, 20 << 20):
                body = random.Random(n).randbytes(n)
                config = s3.S3ChecksumConfig(algorithm=algorithm, location=s3.S3ChecksumLocation.TRAILER)
                seen, _ = self.request("PUT", "sum@" + RUN, s3.S3RequestType.PUT_OBJECT, body, checksum_config=config)
                self.assertEqual(seen.get("status"), 200, seen)
                seen, got = self.request("GET", "sum@" + RUN, s3.S3RequestType.GET_OBJECT, checksum_config=s3.S3ChecksumConfig(validate_response=True))
                self.assertEqual(got, body)
                self.assertNotIn("error", seen)

    def test_head(self):
        seen, _ = self.request("HEAD", "none@" + RUN, s3.S3RequestType.DEFAULT, operation_name="HeadObject")
        self.assertEqual(seen["status"], 404)


if __name__ == "__main__":
    unittest.main()
