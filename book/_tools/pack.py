"""The built book in one zip file, to be read without a network: `make zip`.

The same pages give the same bytes: names in order, one date, no attributes of this machine's files.
"""

import io
import zipfile
from pathlib import Path

import yaml

from mha_book.storage import write_atomic

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "multi-head-attention"
DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that the format knows
LEFT_OUT = {".buildinfo", ".complete", ".nojekyll", "404.html", "sitemap.xml"}
README = """\
{title}
Version {version}

Unpack this folder and open index.html in a browser. Everything is in it, mathematics and search
included; nothing is asked of any other host. _sources has the chapters as notebooks; running them
needs the package, see the book's repository.

Text: CC BY 4.0. Code: Apache License 2.0.
"""


def pack(html: Path, out: Path, readme: str) -> int:
    """Write the file and return how many files are in it."""
    found = {path.relative_to(html): path for path in html.rglob("*") if path.is_file()}
    content = {n.as_posix(): p.read_bytes() for n, p in found.items() if n.parts[0] not in LEFT_OUT}
    content["README.txt"] = readme.encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(content):
            entry = zipfile.ZipInfo(f"{FOLDER}/{name}", DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system, entry.external_attr = 3, 0o644 << 16
            archive.writestr(entry, content[name])
    write_atomic(out, packed.getvalue())
    return len(content)


def main() -> None:
    """Pack the built book."""
    out = ROOT / "_build" / f"{FOLDER}.zip"
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
    words = README.format(title=config["title"], version=citation["version"])
    count = pack(ROOT / "_build" / "html", out, words)
    print(f"{out}: {count} files, {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
