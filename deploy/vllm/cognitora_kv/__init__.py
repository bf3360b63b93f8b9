"""KV connector of vLLM for the cache daemon cgn-kvcached.

vLLM loads cognitora_kv.connector.KVCachedConnector. The other modules need neither vLLM nor torch,
except copies, which needs torch.
"""

__version__ = "0.1.0"
