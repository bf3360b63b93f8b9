"""Small questions that run.sh asks while it brings a fleet up.

  ask.py field FILE PATH   a field of the JSON document in FILE, such as routers.0.listen
  ask.py engines FILE      the engines' URLs in what `cgn-ctl up -o json` printed, by commas
  ask.py port              a free TCP port
  ask.py ready URL         waits until URL answers 200

FILE may still be written: it is read again until it is complete. Everything
gives up after 60 s.
"""

import json
import random
import re
import socket
import sys
import time
import urllib.request


def until(attempt):
    end = time.monotonic() + 60
    while True:
        try:
            return attempt()
        except (OSError, ValueError) as problem:
            if time.monotonic() > end:
                sys.exit(f"ask.py {' '.join(sys.argv[1:])}: {problem}")
            time.sleep(0.05)


def document(path):
    def read():
        with open(path, encoding="utf-8") as f:
            return json.load(f)

    return until(read)


def field(path, name):
    value = document(path)
    for key in name.split("."):
        value = value[int(key)] if key.isdigit() else value[key]
    return value


def engines(path):
    return ",".join(re.search(r"https?://\S+", node["engine"]).group() for node in document(path)["nodes"])


def port():
    """Returns a free port below the range of outgoing connections, which will not take it."""
    for number in random.sample(range(10000, 30000), 100):
        try:
            with socket.create_server(("127.0.0.1", number)):
                return number
        except OSError:
            continue
    sys.exit("ask.py port: none of 100 ports is free")


def ready(url):
    until(lambda: urllib.request.urlopen(url, timeout=5).close())


if __name__ == "__main__":
    answer = {"field": field, "engines": engines, "port": port, "ready": ready}[sys.argv[1]](*sys.argv[2:])
    if answer is not None:
        print(answer)
