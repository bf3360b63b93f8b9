"""Recomputes addresses.json with BLAKE3 written out from its specification, beside the router's digests."""
import json, pathlib, sys

here = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(here.parents[2] / "router/prefix/testdata"))
from check_digests import END, KEYED, ROOT, START, blake3, compress

def name(text):
    return "".join(c if 0x20 < ord(c) < 0x7F and c not in "%;:" else "".join("%%%02X" % b for b in c.encode()) for c in text)

def digest(data):
    return b"".join(w.to_bytes(4, "little") for w in blake3(data)).hex()

golden = json.loads((here / "addresses.json").read_text())
for case in golden["Namespaces"]:
    f = case["Fields"]
    if f["Space"]:
        text = "key1;%s;%s" % (name(f["Space"]), name(f["Tenant"]))
    else:
        text = "kv1;%s;%s;%s;%s;%d;%d.%d;%d.%d;%s" % (name(f["Model"]), name(f["Revision"]), name(f["DType"]), name(f["Layout"]),
            f["Tokens"], f["TP"], f["TPRank"], f["PP"], f["PPRank"], name(f["Tenant"]))
    if text != case["Text"] or digest(b"cognitora.namespace.v1\0" + text.encode()) != case["ID"]:
        sys.exit("namespace %s differs" % text)
for case in golden["Keys"]:
    if digest(b"cognitora.key.v1\0" + case["Key"].encode()) != case["Digest"]:
        sys.exit("key %r differs" % case["Key"])

def chain(model, blocks):
    """The digests of a prompt whose tokens are 0, 1, 2 and so on."""
    cv = blake3(b"cognitora.seq.v1\0" + model.encode() + b"\0\0")
    for i in range(blocks):
        tokens = b"".join(t.to_bytes(4, "little") for t in range(16 * i, 16 * i + 16))
        cv = compress(cv, tokens, START | END | ROOT | KEYED)
        yield b"".join(w.to_bytes(4, "little") for w in cv).hex()

for case in json.loads((here / "names.json").read_text()):
    fields = case["Namespace"].split(";")
    n = int(fields[5]) // 16
    digests = list(chain(fields[1], 2 * n))
    names = "".join(d[:16] for d in digests[n:-1])
    cut = "cgn:%s:%d:%s" % (case["Namespace"], case["Layer"], digests[-1])
    if (case["Parent"], case["Digests"], case["Names"]) != (digests[n - 1], digests[n:], names):
        sys.exit("digests of %s differ" % case["Namespace"])
    if case["Attr"] != (b"cgnames\1".hex() + names if names else "") or case["Cut"] != cut:
        sys.exit("attribute or address of %s differs" % case["Namespace"])
    if case["Key"] != "%s:%s:%s" % (cut, digests[n - 1], names):
        sys.exit("key of %s differs" % case["Namespace"])
