"""The connector of deploy/vllm with a planted fault: half of the blocks that a lookup has found are
gone when they are to be loaded."""
from cognitora_kv import connector


class FaultyConnector(connector.KVCachedConnector):
    def start_load_kv(self, forward_context, **_):
        plan = self._get_connector_metadata()
        plan.loads = [
            (adapter, [bytes(32) if i % 2 else d for i, d in enumerate(digests)], places)
            for adapter, digests, places in plan.loads]
        super().start_load_kv(forward_context)
