"""Runs vLLM's command line with an OffloadingConnector that works on the CPU.

Stock vLLM copies blocks to host memory with CUDA streams only. This program copies them with torch.
All else is vLLM's own: which blocks are stored, their names, and the object tier with NIXL. The
object backend in NIXL's wheel for CUDA 13 needs a library that the wheel lacks, so the program
takes the wheel for CUDA 12.
"""
import sys

import nixl_cu12
import nixl_cu12._api
import nixl_cu12._bindings

sys.modules.update({"nixl": nixl_cu12, "nixl._api": nixl_cu12._api, "nixl._bindings": nixl_cu12._bindings})

import torch  # noqa: E402
import vllm.v1.kv_offload.tiering.spec as tiering  # noqa: E402
from vllm.entrypoints.cli.main import main  # noqa: E402
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult  # noqa: E402


class _Copier(OffloadingWorker):
    def __init__(self, kv_caches, blocks_per_chunk, num_cpu_chunks, mmap_region=None, canonical_layout=False):
        assert blocks_per_chunk == 1 and mmap_region is not None and not canonical_layout
        self._region, self._done = mmap_region, []
        self._pairs = []  # the engine's tensor and the host's, a row for each block
        for t in kv_caches.tensors:
            engine = t.tensor.view(torch.int8).view((-1, t.page_size_bytes))
            self._pairs.append((engine, mmap_region.create_next_worker_view(t.page_size_bytes)))

    def _copy(self, job_id, src_spec, dst_spec, store):
        for src, dst in zip(src_spec.block_ids, dst_spec.block_ids, strict=True):
            for engine, host in self._pairs:
                if store:
                    host[int(dst)].copy_(engine[int(src)])
                else:
                    engine[int(dst)].copy_(host[int(src)])
        self._done.append(TransferResult(job_id=job_id, success=True, transfer_size=0, transfer_time=0.0))
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, src_spec, dst_spec, True)

    def submit_load(self, job_id, src_spec, dst_spec):
        return self._copy(job_id, src_spec, dst_spec, False)

    def get_finished(self):
        done, self._done = self._done, []
        return done

    def wait(self, job_ids):
        pass

    def shutdown(self):
        self._pairs = []
        self._region.cleanup()


def _worker(self, kv_caches):
    if not self._worker:
        self._worker = self.create_worker(kv_caches)
    return self._worker


tiering.CPUOffloadingWorker = _Copier
tiering.TieringOffloadingSpec.get_worker = _worker

if __name__ == "__main__":
    sys.exit(main())
