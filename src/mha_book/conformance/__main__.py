"""Check an attention from the command line.

``python -m mha_book.conformance my_module:attention`` takes a function of queries, keys and values,
a layer, or a class of layers; ``my_module:make()`` what a function without arguments returns; with
``--model``, a model from tokens to logits. The exit status is 0 if nothing failed, 1 if something
did, and 2 if the subject cannot be called.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from mha_book.conformance.check import check_attention
from mha_book.conformance.model import check_model
from mha_book.conformance.oracle import CONVENTIONS, TEXTS
from mha_book.conformance.subject import LAYOUTS, POLARITIES


def find(path: str) -> Any:
    """Return what ``module:name`` or ``file.py:name`` means; a name ending in () is called."""
    module, _, name = path.rpartition(":")
    if not module:
        raise ValueError("subject: expected module:name, for example my_module:attention")
    if module.endswith(".py"):
        sys.path.insert(0, str(Path(module).resolve().parent))
        module = Path(module).stem
    sys.path.insert(0, "")
    value: Any = importlib.import_module(module)
    for part in name.removesuffix("()").split("."):
        value = getattr(value, part)
    return value() if name.endswith("()") else value


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m mha_book.conformance",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("subject", help="module:name or file.py:name")
    parser.add_argument("--layout", help=f"{', '.join(LAYOUTS)}; of a layer BTD or TBD")
    parser.add_argument("--polarity", choices=POLARITIES, help="what a mask says")
    parser.add_argument("--heads", type=int, help="number of heads of a layer")
    many: dict[str, Any] = {"action": "append", "default": []}
    choices = "; ".join(f"{name}: {', '.join(some)}" for name, some in CONVENTIONS.items())
    parser.add_argument(
        "--name",
        metavar="ROLE=PARAMETER",
        help=f"such as mask=allowed; roles: {', '.join(TEXTS['arguments'])}",
        **many,
    )
    parser.add_argument("--expect", metavar="CONVENTION=CHOICE", help=choices, **many)
    parser.add_argument("--model", action="store_true", help="a model from tokens to logits")
    parser.add_argument("--encoder", action="store_true", help="a model that may see the future")
    parser.add_argument("--vocabulary", type=int, default=64, help="tokens of the model")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    names, expect = (
        dict(text.split("=", 1) for text in texts) for texts in (given.name, given.expect)
    )
    if sys.stderr.isatty():
        print(f"checking {given.subject} …", end="\r", file=sys.stderr, flush=True)
    try:
        subject, told = find(given.subject), {"name": given.subject, "names": names}
        if given.model:
            causal = not given.encoder
            report = check_model(subject, vocabulary=given.vocabulary, causal=causal, **told)
        else:
            told |= {"layout": given.layout, "polarity": given.polarity}
            told |= {"num_heads": given.heads} if given.heads else {}
            report = check_attention(subject, expect=expect, **told)
    except (ValueError, ImportError, AttributeError) as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(report.as_json(), indent=1) if given.json else report)
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
