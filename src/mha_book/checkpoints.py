"""Trees of arrays in safetensors files: whole or not there, with where they come from.

A file is written beside its place, forced to the disk, and moved there in one step, so that a
process that dies at any moment leaves the old file or the new one. It carries a digest of its
content, which is checked before anything is used.
"""

import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from mha_book._checks import check
from mha_book.models._files import import_extra

__all__ = ["load_arrays", "load_tree", "provenance", "save_arrays", "tree_arrays", "write_atomic"]

Tree = TypeVar("Tree")
PACKAGES = ("mha-book", "jax", "jaxlib", "numpy", "optax", "safetensors")


def provenance(command: str | None = None) -> dict[str, Any]:
    """Return where a result comes from: versions, machine, date, command.

    Args:
        command: how to make it again; None for the command line of this process.

    Returns:
        A dictionary that JSON can hold.

    Example:
        >>> provenance("python -m example")["command"]
        'python -m example'
    """

    def version(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    return {
        "command": " ".join(sys.argv) if command is None else command,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {package: version(package) for package in PACKAGES},
        "machine": platform.machine(),
        "device": jax.devices()[0].device_kind,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
    }


def write_atomic(path: Path, content: bytes) -> None:
    """Write a file so that at every moment the old content is there or the new, whole.

    Args:
        path: the file; its folder is made if it is missing.
        content: the bytes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")  # of a dead process: written over
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    if os.name == "posix":  # so that the move itself outlives a loss of power
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def tree_arrays(tree: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """Return the leaves of a tree by their paths; a PRNG key becomes its data.

    Args:
        tree: a pytree of arrays.
        prefix: what every name begins with.

    Returns:
        Names such as ``params.layers[0].attention.w_q`` and arrays.

    Example:
        >>> tree_arrays({"a": [jnp.ones(2)]}, "x")
        {"x['a'][0]": array([1., 1.], dtype=float32)}
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {f"{prefix}{jax.tree_util.keystr(path)}": _to_numpy(leaf) for path, leaf in leaves}


def save_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any] | None = None
) -> None:
    """Write arrays and what describes them to a safetensors file, atomically.

    Args:
        path: the file.
        arrays: arrays by name.
        metadata: values that JSON can hold, by name, for example the ``config`` and the
            ``provenance``; a digest ``sha256`` over all of it is added.

    Raises:
        ValueError: an array has a dtype that cannot be read back, such as bfloat16.
        ModuleNotFoundError: safetensors is missing; the message says how to install it.
    """
    safetensors = import_extra("safetensors.numpy", "training")
    described = {
        name: json.dumps(value, sort_keys=True) for name, value in (metadata or {}).items()
    }
    for name, array in arrays.items():  # the reader of safetensors for numpy has no bfloat16
        check(array.dtype.kind in "fiub", name, "float16 or wider, integers, booleans", array.dtype)
    ordered = {name: np.asarray(arrays[name], order="C") for name in sorted(arrays)}
    digest = _digest(ordered, described)
    write_atomic(path, safetensors.save(ordered, {**described, "sha256": digest}))


def load_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what :func:`save_arrays` wrote, after checking its digest.

    Args:
        path: the file.

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
    return arrays, {name: json.loads(value) for name, value in described.items()}


def load_tree(arrays: Mapping[str, np.ndarray], like: Tree, prefix: str = "") -> Tree:
    """Put arrays by name back into a tree: the inverse of :func:`tree_arrays`.

    Args:
        arrays: what :func:`load_arrays` gave.
        like: a tree of the same form; of its leaves only shape and dtype are used.
        prefix: what the names of its leaves begin with.

    Returns:
        The tree.

    Raises:
        ValueError: a leaf is missing or has another shape or dtype.

    Example:
        >>> tree = {"a": [jnp.ones(2)]}
        >>> jax.tree.map(jnp.shape, load_tree(tree_arrays(tree), tree))
        {'a': [(2,)]}
    """

    def leaf(path: Any, template: Any) -> jax.Array:
        name = f"{prefix}{jax.tree_util.keystr(path)}"
        check(name in arrays, name, "an array of this name", "none")
        is_key = jnp.issubdtype(template.dtype, jax.dtypes.prng_key)
        wanted = jax.eval_shape(jax.random.key_data, template) if is_key else template
        array = arrays[name]
        what = f"shape {wanted.shape} and dtype {wanted.dtype}"
        same = array.shape == wanted.shape and array.dtype == wanted.dtype
        check(same, name, what, f"{array.shape} and {array.dtype}")
        placed = jnp.asarray(array)
        return jax.random.wrap_key_data(placed) if is_key else placed

    return jax.tree_util.tree_map_with_path(leaf, like)


def _to_numpy(leaf: Any) -> np.ndarray:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _digest(arrays: Mapping[str, np.ndarray], described: Mapping[str, str]) -> str:
    """Return the sha256 over names, dtypes, shapes, bytes and metadata, in a fixed order."""
    digest = hashlib.sha256(json.dumps(sorted(described.items())).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\0{name}\0{array.dtype}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
