"""Arrays and trees of arrays in safetensors files, with a digest of all that is in the file."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from mha_book._checks import check, check_type
from mha_book.storage.files import check_text, json_text, write_atomic
from mha_book.storage.packages import import_extra

__all__ = ["load_arrays", "load_tree", "save_arrays"]

Tree = TypeVar("Tree")

_WIDTHS = {"float": (16, 32, 64), "int": (8, 16, 32, 64), "uint": (8, 16, 32, 64)}
_DTYPES = {"bool", *(f"{kind}{bits}" for kind, widths in _WIDTHS.items() for bits in widths)}


def plain_array(given: Any, name: str) -> np.ndarray:
    """Return an array of NumPy; raise where it has a mask, which a file would lose."""
    is_masked = isinstance(given, np.ma.MaskedArray)
    check(not is_masked, name, "an array without a mask; write array.filled(...)", "a masked array")
    return np.asarray(given)


def tree_arrays(tree: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """Return the leaves of a tree by their paths, such as ``params.layers[0].attention.w_q``.

    Every name begins with ``prefix``; a PRNG key becomes its data.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    named = {f"{prefix}{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves}
    for name, leaf in named.items():
        check(hasattr(leaf, "dtype"), name, "an array", type(leaf).__name__)
    is_key = {n: jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for n, leaf in named.items()}
    data = {n: jax.random.key_data(leaf) if is_key[n] else leaf for n, leaf in named.items()}
    return {name: plain_array(leaf, name) for name, leaf in data.items()}


def save_arrays(
    path: Path | str, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any] | None = None
) -> None:
    """Write arrays and what describes them to a safetensors file, atomically.

    Args:
        path: the file.
        arrays: arrays by name, in any order of bytes: the file has them little-endian.
        metadata: values that JSON can hold, by name, for example the ``config`` of a model; a
            digest ``sha256`` over all of it is added.

    Raises:
        ValueError: an array is masked or has a dtype that cannot be read back, such as bfloat16, or
            a name is one that the format keeps for itself.
        ModuleNotFoundError: safetensors is missing; the message says how to install it.
    """
    safetensors = import_extra("safetensors.numpy", "training")
    described = {}
    for name, value in (metadata or {}).items():
        is_free = isinstance(name, str) and name != "sha256"
        check(is_free, "metadata", "names that are strings, none of them sha256", repr(name))
        described[name] = json_text(value, f"metadata[{name!r}]", sort_keys=True)
    check_type(arrays, "arrays", Mapping)
    little = {}
    for name, given in arrays.items():
        is_free = isinstance(name, str) and name != "__metadata__"
        check(is_free, "arrays", "names that are strings, none of them __metadata__", repr(name))
        check_text(name, "arrays")
        array = plain_array(given, name)
        known = array.dtype.name in _DTYPES  # the reader of safetensors for numpy has no bfloat16
        check(known, name, "float16, 32 or 64, integers, booleans", array.dtype)
        little[name] = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    ordered = {name: little[name] for name in sorted(little)}
    digest = _digest(ordered, described)
    write_atomic(path, safetensors.save(ordered, {**described, "sha256": digest}))


def load_arrays(path: Path | str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what :func:`save_arrays` wrote, after checking its digest.

    Returns:
        The arrays and the metadata.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, or was not written by :func:`save_arrays`.
        ModuleNotFoundError: safetensors is missing; the message says how to install it.
    """
    safetensors = import_extra("safetensors.numpy", "training")
    content = Path(path).read_bytes()
    try:
        arrays = safetensors.load(content)
        size = int.from_bytes(content[:8], "little")
        described = dict(json.loads(content[8 : 8 + size]).get("__metadata__", {}))
    except Exception as error:
        raise ValueError(f"{path}: expected a whole safetensors file; got {error}") from error
    stored = described.pop("sha256", None)
    check(stored == _digest(arrays, described), str(path), "content with its own digest", stored)
    try:  # a digest is no signature: whoever makes a file can make it
        return arrays, {name: json.loads(value) for name, value in described.items()}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected metadata in JSON; got {error}") from error


def load_tree(arrays: Mapping[str, np.ndarray], like: Tree, prefix: str = "") -> Tree:
    """Put arrays by name back into a tree.

    Args:
        arrays: what :func:`load_arrays` gave.
        like: a tree of the same form; of its leaves only shape and dtype are used.
        prefix: what the names of its leaves begin with.

    Returns:
        The tree, of arrays of JAX; one of 64 bits that JAX would narrow stays an array of NumPy.

    Raises:
        ValueError: a leaf is missing or has another shape or dtype, or ``like`` has no leaf for an
            array of this prefix.

    Example:
        >>> load_tree({"['a'][0]": np.ones(2, np.float32)}, {"a": [jnp.zeros(2)]})
        {'a': [Array([1., 1.], dtype=float32)]}
    """
    check_type(arrays, "arrays", Mapping)

    def leaf(path: Any, template: Any) -> jax.Array | np.ndarray:
        name = f"{prefix}{jax.tree_util.keystr(path)}"
        check(name in arrays, name, "an array of this name", "none")
        is_key = jnp.issubdtype(template.dtype, jax.dtypes.prng_key)
        wanted = jax.eval_shape(jax.random.key_data, template) if is_key else template
        array = arrays[name]
        what = f"shape {wanted.shape} and dtype {wanted.dtype}"
        same = array.shape == wanted.shape and array.dtype == wanted.dtype
        check(same, name, what, f"{array.shape} and {array.dtype}")
        if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
            return array
        return jax.random.wrap_key_data(jnp.asarray(array)) if is_key else jnp.asarray(array)

    leaves = jax.tree_util.tree_leaves_with_path(like)
    known = {f"{prefix}{jax.tree_util.keystr(path)}" for path, _ in leaves}
    starts = tuple(f"{prefix}{sign}" for sign in (".", "["))
    more = sorted({n for n in arrays if n == prefix or n.startswith(starts)} - known)
    check(not more, "like", "a place for every array of its prefix", f"none for {more[:3]}")
    loaded: Tree = jax.tree_util.tree_map_with_path(leaf, like)
    return loaded


def _digest(arrays: Mapping[str, np.ndarray], described: Mapping[str, str]) -> str:
    """Return the sha256 over names, dtypes, shapes, bytes and metadata, in a fixed order."""
    digest = hashlib.sha256(json.dumps(sorted(described.items())).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\0{name}\0{array.dtype}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
