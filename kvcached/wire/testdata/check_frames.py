"""Recomputes frames.json with struct and a bitwise CRC32C; `--write` fills in the bytes of new cases."""
import base64, json, pathlib, struct, sys

def crc32c(data):
    c = 0xFFFFFFFF
    for byte in data:
        c ^= byte
        for _ in range(8):
            c = c >> 1 ^ (0x82F63B78 if c & 1 else 0)
    return c ^ 0xFFFFFFFF

def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()

def digest(h):
    return bytes.fromhex(h).ljust(32, b"\0")

def head(f):
    return (struct.pack("<HBB", f["version"], f["op"], f["status"]) + digest(f["digest"]) + struct.pack("<I", f["layer"])
            + text(f["namespace"])
            + struct.pack("<QQIIIQQQ", f["offset"], f["len"], f["crc"], f["deadline_ms"], f["flags"], f["request"], f["total"], f["body"])
            + digest(f["parent"]) + struct.pack("<q", f["expires"]) + text(f["key"]) + text(f["attr"]))

def address(a):
    return digest(a["digest"]) + digest(a["model"]) + struct.pack("<I", a["layer"])

def many(items, one):
    return struct.pack("<Q", len(items)) + b"".join(map(one, items))

BODIES = {
    "addrs": lambda v: many(v, address),
    "infos": lambda v: b"".join(struct.pack("<QII", i["length"], i["crc"], i["tiers"]) for i in v),
    "expiries": lambda v: b"".join(struct.pack("<QIIq", i["length"], i["crc"], i["tiers"], i["expires"]) for i in v),
    "order": lambda v: text(v["host"]) + struct.pack("<Qq", v["number"], v["moment"]) + many(v["texts"], text) + many(v["addrs"], address),
    "reply": lambda v: struct.pack("<QQ", v["number"], len(base64.b64decode(v["marks"]))) + base64.b64decode(v["marks"]) + many(v["texts"], text) + many(v["addrs"], address),
    "locations": lambda v: many(v["hosts"], text) + many(v["holders"], lambda hs: many(
        hs, lambda h: struct.pack("<IIQ", h["host"], h["tiers"], h["length"]))),
    "announcement": lambda v: text(v["host"]) + struct.pack("<QQ", v["epoch"], v["version"]) + many(
        v["changes"], lambda c: address(c["addr"]) + struct.pack("<IQ", c["tiers"], c["length"])),
    "receipt": lambda v: struct.pack("<QQ", v["epoch"], v["version"]),
}

def raw(h):
    return struct.pack("<Q", len(bytes.fromhex(h))) + bytes.fromhex(h)

def end(e):
    return bytes.fromhex(e["gid"]).ljust(16, b"\0") + struct.pack("<IIII", e["qpn"], e["psn"], e["mtu"], e["reads"])

def window(w):
    return struct.pack("<IIQQ", w["rail"], w["rkey"], w["addr"], w["length"])

def number(n):
    return struct.pack("<Q", n)

def granted(b):
    if b["status"]:
        return struct.pack("<B", b["status"])
    return (struct.pack("<BIQ", 0, b["crc"], b["length"]) + digest(b["parent"]) + struct.pack("<q", b["expires"]) + raw(b["key"]) + raw(b["attr"])
            + many(b["parts"], window))

BODIES |= {
    "connection": lambda v: many(v["ends"], end),
    "connected": lambda v: struct.pack("<QIIII", v["session"], v["grantMS"], v["idleMS"], v["most"], v["crc"]) + many(v["ends"], end) + b"".join(map(window, v["probes"])),
    "wanted": lambda v: struct.pack("<Q", v["session"]) + many(v["done"], number) + many(v["addrs"], address),
    "granted": lambda v: struct.pack("<QI", v["grant"], v["ms"]) + many(v["blocks"], granted),
    "returned": lambda v: struct.pack("<Q", v["session"]) + many(v["grants"], number) + struct.pack("<?", v["end"]),
}

path = pathlib.Path(__file__).with_name("frames.json")
golden = json.loads(path.read_text())
for case in golden["frames"] + golden["bodies"] + golden["sums"]:
    if "frame" in case:
        want = head(case["frame"]).hex()
    elif "kind" in case:
        want = BODIES[case["kind"]](case["value"]).hex()
    else:
        want = "%08x" % crc32c((case["first"] + case["second"]).encode())
    if "--write" in sys.argv:
        case.setdefault("hex", want)
    if case["hex"] != want:
        sys.exit("%s differs" % case["name"])
if "--write" in sys.argv:
    path.write_text(json.dumps(golden, indent=1) + "\n")
