"""The six models of Bamboo's paper, at full size and so small that a processor trains them, and
library models of other kinds. The data are random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bamboo_core.api.spec import FactorySpec

_VISION = "bamboo_agent.models.torchvision:build"
_LANGUAGE = "bamboo_agent.models.transformers:build"
_TRANSLATION = "bamboo_agent.models.gnmt:build"
_DATA = "bamboo_agent.datasets.synthetic"


@dataclass(frozen=True)
class Entry:
    """A model and its data. pipelines, stages: the paper's grid on demand. micro_batch: samples."""

    title: str
    model: FactorySpec
    data: FactorySpec
    pipelines: int = 4
    stages: int = 4
    micro_batch: int = 2

    @property
    def spare_stages(self) -> int:
        """The paper's number of stages on spot nodes: half as many again."""
        return self.stages * 3 // 2


def _images(
    title: str, name: str, size: int, classes: int, *, narrower: int = 1, **more: Any
) -> Entry:
    arguments = {"name": name, "classes": classes}
    arguments |= {} if narrower == 1 else {"narrower": narrower}
    data = FactorySpec(f"{_DATA}:Images", {"size": size, "classes": classes})
    return Entry(title, FactorySpec(_VISION, arguments), data, **more)


def _texts(title: str, config: Mapping[str, Any], time: int, **more: Any) -> Entry:
    task = "masked" if config["model_type"] == "bert" else "causal"
    given = {"config": dict(config), "task": task}
    data = {"time": time, "vocab": config["vocab_size"], "kind": task}
    return Entry(title, FactorySpec(_LANGUAGE, given), FactorySpec(f"{_DATA}:Texts", data), **more)


def _translations(title: str, vocab: int, width: int, layers: int, time: int, **more: Any) -> Entry:
    model = FactorySpec(_TRANSLATION, {"vocab": vocab, "width": width, "layers": layers})
    data = FactorySpec(f"{_DATA}:Translations", {"time": time, "vocab": vocab})
    return Entry(title, model, data, **more)


def _bert(blocks: int, width: int, heads: int, vocab: int) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "num_hidden_layers": blocks,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_attention_heads": heads,
        "vocab_size": vocab,
    }


def _gpt2(blocks: int, width: int, heads: int, vocab: int, places: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_layer": blocks,
        "n_embd": width,
        "n_head": heads,
        "vocab_size": vocab,
        "n_positions": places,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _llama(kind: str, **more: Any) -> dict[str, Any]:
    return {
        "model_type": kind,
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        **more,
    }


FULL = {
    "resnet152": _images("ResNet-152", "resnet152", 224, 1000, stages=8, micro_batch=32),
    "vgg19": _images("VGG-19", "vgg19", 224, 1000, micro_batch=32),
    "alexnet": _images("AlexNet", "alexnet", 224, 1000, micro_batch=128),
    "bert-large": _texts("BERT-Large", _bert(24, 1024, 16, 30522), 512, stages=8, micro_batch=8),
    "gpt2": _texts("GPT-2 XL", _gpt2(48, 1600, 25, 50257, 1024), 1024, stages=8, micro_batch=1),
    "gnmt16": _translations("GNMT-16", 32000, 1024, 16, 50, micro_batch=32),
}
"""The paper's."""

TINY = {
    "resnet": _images("ResNet-18", "resnet18", 32, 4, narrower=16),
    "vgg": _images("VGG-11", "vgg11", 32, 4, narrower=16),
    "alexnet": _images("AlexNet", "alexnet", 63, 4, narrower=16),
    "bert": _texts("BERT", _bert(2, 32, 2, 64), 16),
    "gpt2": _texts("GPT-2", _gpt2(2, 32, 2, 64, 16), 16),
    "gnmt": _translations("GNMT-4", 64, 16, 4, 8),
}
"""The same kinds, small."""

LIBRARY = {
    "llama": _texts("Llama", _llama("llama"), 16),
    "mistral": _texts("Mistral", _llama("mistral", sliding_window=8), 16),
    "qwen2": _texts("Qwen2", _llama("qwen2"), 16),
}
"""Small ones of other kinds."""
