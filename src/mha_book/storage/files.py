"""Files that are whole or not there, and results in JSON that carry their digest."""

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mha_book._checks import check, check_type

__all__ = ["read_result"]

PROVENANCE = (
    "date", "command", "git", "python", "packages", "system", "device", "cores", "seeds", "inputs",
    "payload_sha256",
)  # fmt: skip
"""What the block ``provenance`` of a stored result has, beside what a kind of result adds.

``git`` is the commit of the code that ran, and whether files differed from it; ``seeds`` says what
was drawn from which; ``inputs`` has the sha256 of each file read (of a result, its
:func:`payload_digest`); ``payload_sha256`` is :func:`payload_digest`, or the digest of a file that
is no JSON. What nobody recorded is :data:`NOT_RECORDED`.
"""
NOT_RECORDED = "not recorded"
"""Of a commit, with the commit that brought the file in ``added_in`` next to it."""


def write_atomic(path: Path | str, content: bytes) -> None:
    """Write a file, or what a link leads to, so that at every moment old or new content is there.

    The bytes go to a file of a name that no other writer has, ``NAME.….partial`` beside the place,
    and are moved from there: of several writers at once the last one's content stays. What fails
    (``OSError``) leaves nothing behind; a process that is killed leaves its partial file, which may
    be deleted. The folder is made if it is missing; a file that is there keeps its mode.
    """
    check_type(content, "content", (bytes, bytearray, memoryview))
    path = Path(os.path.realpath(path))  # a link stays one, to the new content
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


def file_digest(path: Path | str) -> str:
    """Return the sha256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def payload_digest(document: Mapping[str, Any]) -> str:
    """Return the sha256 of a result without its provenance, in hexadecimal.

    It is that of the canonical form: names sorted, no spaces, numbers as Python writes them.
    """
    check_type(document, "document", Mapping)
    payload = {name: value for name, value in document.items() if name != "provenance"}
    canonical = json_text(payload, "document", sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def json_text(value: Any, name: str, **options: Any) -> str:
    """Return the text of a value, which is one that JSON can hold."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except (TypeError, ValueError) as error:
        what = "what JSON can hold: text, finite numbers, lists, names to values"
        raise ValueError(f"{name}: expected {what}; got {value!r}: {error}") from error
    except RecursionError as error:  # too deep to be shown as well
        raise ValueError(f"{name}: expected values in fewer lists; got {error}") from error


def check_text(text: str, name: str) -> None:
    """Raise unless a string can be written as UTF-8: half of a surrogate pair cannot."""
    half = next((repr(c) for c in text if "\ud800" <= c <= "\udfff"), None)
    check(half is None, name, "text without lone surrogates", half)


def seal(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result, in the same order, whose provenance has its digest."""
    check("provenance" in document, "document", "a block provenance", "none")
    plain = json.loads(json_text(document, "document"))  # what a reader will have
    block = {**document["provenance"], "payload_sha256": payload_digest(plain)}
    return {**document, "provenance": block}


def read_result(path: Path | str) -> dict[str, Any]:
    """Read a stored result, after checking its digest.

    Args:
        path: a JSON file with a block ``provenance``.

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
