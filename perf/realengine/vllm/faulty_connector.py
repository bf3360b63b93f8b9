"""The connector of deploy/vllm with a planted fault: half of the blocks that a lookup has found are
gone when they are to be loaded. Their places hold what other requests may have left there."""
import torch

from cognitora_kv import connector


class FaultyConnector(connector.KVCachedConnector):
    def start_load_kv(self, forward_context, **_):
        plan = self._get_connector_metadata()
        for layer in self.side.loader.cache.layers:
            for _, _, places in plan.loads:
                for place in places[1::2]:
                    layer[place].copy_(1e3 * torch.randn(layer[place].shape))
        plan.loads = [
            (adapter, [bytes(32) if i % 2 else d for i, d in enumerate(digests)], places)
            for adapter, digests, places in plan.loads]
        super().start_load_kv(forward_context)
