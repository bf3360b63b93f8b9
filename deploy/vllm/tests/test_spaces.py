"""Tests of what a namespace names. They need vLLM to be importable, and no daemon."""
from pathlib import Path
import sys
import tempfile
from types import SimpleNamespace
import unittest
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cognitora_kv import adapters, namespace  # noqa: E402


class FakeModel(SimpleNamespace):
    """A ModelConfig of vLLM, whose configuration has these members too."""

    def __init__(self, directory, model=None, **members):
        hf = {"_name_or_path": directory, "rope_parameters": {"rope_type": "default"}, "architectures": ["A"],
              "id2label": {0: "a"}, **members}
        more = {"quantization": None, "quantization_config": None, "dtype": "torch.bfloat16", "max_model_len": 64,
                **(model or {})}
        super().__init__(model=directory, revision=None, served_model_name="m",
                         hf_config=SimpleNamespace(to_dict=lambda: hf), **more)


class Spaces(unittest.TestCase):
    def setUp(self):
        try:
            from cognitora_kv import connector
        except ImportError as e:
            self.skipTest(f"no vLLM: {e}")
        self.connector = connector
        self.enterContext(mock.patch.object(connector, "layout", return_value="layout"))
        self.at = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.at / "model.safetensors").write_bytes(b"weights")

    def settings(self, model=None, draft=None, skip=(), **members):
        group = SimpleNamespace(layer_names=["a"], kv_cache_spec=type("FullAttentionSpec", (), {"block_size": 32})())
        config = SimpleNamespace(
            kv_transfer_config=SimpleNamespace(kv_connector_extra_config={}, kv_load_failure_policy="recompute"),
            compilation_config=SimpleNamespace(static_forward_context={}), lora_config=None,
            model_config=FakeModel(str(self.at), model, **members),
            cache_config=SimpleNamespace(cache_dtype="fp8", kv_cache_dtype_skip_layers=list(skip)),
            parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
            speculative_config=None if draft is None else SimpleNamespace(
                method="eagle", draft_model_config=FakeModel(str(self.at), **draft)))
        return self.connector.Settings(config, SimpleNamespace(num_blocks=8, kv_cache_groups=[group]))

    def test_what_changes_the_bytes_changes_the_namespace(self):
        def of(**what):
            s = self.settings(**what)
            return s.namespace(s.revision, 0, 0)

        plain, longrope = of(), {"rope_parameters": {"rope_type": "longrope"}}
        for same in ({"_name_or_path": "/elsewhere"}, {"transformers_version": "9"}, {"id2label": {}},
                     {"model": {"max_model_len": 32}}):
            self.assertEqual(plain, of(**same), same)
        faults = [{"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, {"rope_theta": 5e5},
                  {"text_config": {"rope_theta": 5e5}}, {"model": {"quantization": "fp8"}},
                  {"model": {"quantization_config": {"linear": "int8"}}}, {"model": {"dtype": "torch.float16"}},
                  {"skip": ["0"]}, {"draft": {}}, {"draft": {"rope_theta": 5e5}}, longrope,
                  {**longrope, "model": {"max_model_len": 1 << 17}}]
        self.assertEqual(len({plain, *(of(**f) for f in faults)}), 1 + len(faults))
        self.assertLess(len(plain), 120)

    def test_an_adapter_whose_files_change(self):
        s, at = self.settings(), self.at / "adapter"
        at.mkdir()
        (at / "adapter_model.safetensors").write_bytes(b"one")
        lora = SimpleNamespace(lora_name="a", lora_int_id=1, lora_path=str(at), load_inplace=True)
        first = s.adapter(lora)
        self.assertEqual((first, s.adapter(lora)), (namespace.revision_of(at), first))
        (at / "adapter_model.safetensors").write_bytes(b"other")
        with self.assertLogs(self.connector.logger, "WARNING") as said:
            self.assertEqual((s.adapter(lora), s.adapter(lora)), (None, None))
        self.assertEqual(len(said.output), 1)
        (at / "adapter_model.safetensors").write_bytes(b"one")
        self.assertIsNone(s.adapter(lora), "nobody knows what is loaded")
        (at / "adapter_model.safetensors").write_bytes(b"third")
        s.reset()
        second = s.adapter(lora)
        self.assertNotIn(second, (None, first))
        (at / "adapter_model.safetensors").unlink()
        self.assertEqual(s.adapter(lora), second, "it is loaded")

    def test_adapters_are_looked_at_once_a_second(self):
        at, clock, told = self.at / "adapter", [0.0], []
        at.mkdir()
        (at / "adapter_model.safetensors").write_bytes(b"one")
        known = adapters.Adapters(lambda *text: told.append(text), lambda: clock[0])

        def name(number=1, inplace=False, name="a"):
            return known.name(SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=str(at),
                                              load_inplace=inplace))

        self.enterContext(mock.patch.object(adapters, "MOST", 4))
        with mock.patch.object(namespace, "files_of", side_effect=namespace.files_of) as look:
            first = name()
            self.assertEqual((first, name(), look.call_count), (namespace.revision_of(at), first, 1))
            clock[0] = adapters.AGAIN
            self.assertEqual((name(), look.call_count), (first, 2))
            self.assertEqual((name(number=2), look.call_count), (first, 3), "it has been loaded anew")
            self.assertEqual((name(2, inplace=True), look.call_count), (first, 4))
            (at / "adapter_model.safetensors").write_bytes(b"other")
            self.assertEqual((name(2), look.call_count), (first, 4))
            clock[0] += adapters.AGAIN
            self.assertEqual((name(2), name(2, inplace=True), len(told)), (None, None, 1))
            for i in range(adapters.MOST - 1):
                name(name=f"n{i}")
            self.assertIsNone(name(2), "the last ones in use are remembered")
            for i in range(adapters.MOST):
                name(name=f"m{i}")
            self.assertEqual((len(known.known), name(2)), (adapters.MOST, namespace.revision_of(at)))

    def test_a_reset_begins_a_generation(self):
        s = self.settings()
        names = {s.named(a) for a in ("", "x")}
        for _ in range(3):
            s.reset()
            names |= {s.named(a) for a in ("", "x")}
        self.assertEqual(len(names), 8)


if __name__ == "__main__":
    unittest.main()
