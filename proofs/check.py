"""Check the theorems: ``make proofs``.

Coq's ``coqc`` compiles every file of this folder in ``_build/proofs``. Nothing counts as proved
whose assumptions are not on the list below, and the statements have to be those of the present
pages. ``--write`` makes ``Statements.v`` anew from the pages; ``--planted`` plants the errors of
``theorems.yml``, one after another, each of which a proof must not survive.
"""

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml

from mha_book.notation import page_equations, parse_equations
from mha_book.notation.coq import to_coq

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent / "_build" / "proofs"
INSTALL = "apt-get install coq libcoq-coquelicot libcoq-mathcomp-ssreflect"

# What Coq's library of the real numbers assumes: two principles about decisions from which the
# numbers are built, equality of functions that agree everywhere, and the excluded middle.
ASSUMPTIONS = {
    "ClassicalDedekindReals.sig_forall_dec",
    "ClassicalDedekindReals.sig_not_dec",
    "FunctionalExtensionality.functional_extensionality_dep",
    "Classical_Prop.classic",
}
_FORBIDDEN = re.compile(
    r"\b(Admitted|admit|Axioms?|Parameters?|Conjectures?|Abort|give_up|Unset|bypass_check|Primitive)\b"
)
_THEOREM = re.compile(r"^Theorem (\w+)(.*?)^Proof.*?\bQed\.$", re.S | re.M)


def theorems() -> list[dict]:
    """Read the list of the theorems."""
    return yaml.safe_load((HERE / "theorems.yml").read_text(encoding="utf8"))


def statements(altered: dict[str, tuple[str, str]] | None = None) -> str:
    """Return ``Statements.v``, made from the pages' text, in which labels may be altered."""
    named = dict.fromkeys(place for t in theorems() for place in t.get("equations", []))
    parts = ["(* Made from the book's displayed equations by proofs/check.py --write. *)\n"]
    parts.append("From MHA Require Import Sums.\n")
    for place in sorted(named):
        page, label = place.split("/")
        latex = page_equations(HERE.parent / "book" / f"{page}.ipynb")[label]
        if altered and label in altered:
            old, new = altered[label]
            if latex.count(old) != 1:
                raise SystemExit(f"{place} has {latex.count(old)} times: {old}")
            latex = latex.replace(old, new)
        equations = parse_equations(latex)
        parts.append(f"(* {place} *)")
        for number, equation in enumerate(equations, 1):
            suffix = f"_{number}" if len(equations) > 1 else ""
            parts.append(to_coq(equation, label.replace("-", "_") + suffix) + "\n")
    return "\n".join(parts)


def compile_file(path: Path) -> str:
    """Compile a file next to those it needs; return what Coq says against it, or nothing."""
    command = ["coqc", "-w", "none", "-Q", ".", "MHA", path.name]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stderr or f"coqc ended with {done.returncode}"


def assumptions(names: dict[str, str], folder: Path) -> dict[str, set[str]]:
    """Return what each theorem assumes, from Coq's ``Print Assumptions``."""
    lines = [f"From MHA Require {' '.join(sorted(set(names.values())))}."]
    for name, file in names.items():
        lines.append(f'Redirect "{name}" Print Assumptions {file}.{name}.')
    (folder / "Assumptions.v").write_text("\n".join(lines), encoding="utf8")
    if error := compile_file(folder / "Assumptions.v"):
        raise SystemExit(error)
    assumed = {}
    for name in names:
        text = (folder / f"{name}.out").read_text(encoding="utf8").replace("Axioms:", "")
        assumed[name] = set(re.findall(r"^([\w.]+)\s*:", text, re.M))
    return assumed


def check() -> int:
    """Compile everything; print each theorem with what it assumes; return the number of faults."""
    faults = []
    if statements() != (HERE / "Statements.v").read_text(encoding="utf8"):
        faults.append("Statements.v is not what the pages say now: run proofs/check.py --write")
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(HERE, BUILD, ignore=shutil.ignore_patterns("*.py", "*.yml"))
    names = {t["name"]: t["file"] for t in theorems()}
    sources = {path.stem: path.read_text(encoding="utf8") for path in HERE.glob("*.v")}
    found = {
        n: file for file, text in sources.items() for n in re.findall(r"^Theorem (\w+)", text, re.M)
    }
    if found != names:
        faults.append(f"theorems.yml and the files differ: {sorted(found.items() ^ names.items())}")
    for file, text in sources.items():
        faults += [f"{file}.v has the word {word}" for word in _FORBIDDEN.findall(text)]
    for file in ["Sums", "Statements", *sorted({*sources} - {"Sums", "Statements"})]:
        start = time.perf_counter()
        if error := compile_file(BUILD / f"{file}.v"):
            raise SystemExit(f"{file}.v does not hold:\n{error}")
        print(f"{file + '.v':20} {time.perf_counter() - start:5.1f} s")
    for name, assumed in assumptions(names, BUILD).items():
        print(f"{name:40} {', '.join(sorted(x.split('.')[-1] for x in assumed)) or 'nothing'}")
        faults += [f"{name} assumes {x}" for x in sorted(assumed - ASSUMPTIONS)]
    for fault in faults:
        print("error:", fault, file=sys.stderr)
    if not faults:
        on_pages = sum("equations" in t for t in theorems())
        print(f"{len(names)} theorems proved, {on_pages} on equations of the pages")
    return len(faults)


def only(name: str, text: str) -> str:
    """Return a file in which only one theorem is left to prove."""
    return _THEOREM.sub(
        lambda m: m[0] if m[1] == name else f"Theorem {m[1]}{m[2]}Proof. Admitted.", text
    )


def planted(names: list[str]) -> int:
    """Plant one error for each theorem, or some of them; return how many proofs survived."""
    survived, chosen = 0, [t for t in theorems() if not names or t["name"] in names]
    for theorem in chosen:
        error, name = theorem["planted"], theorem["name"]
        folder = BUILD / "planted"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for file in ("Sums.vo", "Statements.vo"):
            shutil.copy(BUILD / file, folder)
        text = (HERE / f"{theorem['file']}.v").read_text(encoding="utf8")
        if "label" in error:
            altered = statements({error["label"]: (error["old"], error["new"])})
            (folder / "Statements.v").write_text(altered, encoding="utf8")
            if message := compile_file(folder / "Statements.v"):
                raise SystemExit(f"{name}: the altered equation is no statement:\n{message}")
        else:
            if text.count(error["old"]) != 1:
                raise SystemExit(
                    f"{name}: the file has {text.count(error['old'])} times: {error['old']}"
                )
            text = text.replace(error["old"], error["new"])
        path = folder / f"{theorem['file']}.v"
        path.write_text(only(name, text), encoding="utf8")
        message = compile_file(path)
        line = int((re.search(r"line (\d+)", message) or [0, 0])[1])
        before = "\n".join(path.read_text(encoding="utf8").split("\n")[:line])
        bad = re.search(r"Syntax error|not found in the current environment", message)
        caught = bool(message) and not bad and re.findall(r"^Proof", before, re.M)
        survived += not caught
        last = re.findall(r"^(?:Theorem|Lemma) (\w+)", before, re.M) or ["-"]
        said = "caught" if caught else "SURVIVED"
        print(f"{said:8} {name:40} {error['new']}  [in {last[-1]}]")
        if not caught:
            print(message, file=sys.stderr)
    print(f"{len(chosen) - survived} of {len(chosen)} planted errors made the proof fail")
    return survived


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--write", action="store_true", help="make Statements.v anew from the pages"
    )
    what = "plant the errors of theorems.yml, all or those of some theorems"
    parser.add_argument("--planted", nargs="*", metavar="THEOREM", help=what)
    options = parser.parse_args()
    if options.write:
        (HERE / "Statements.v").write_text(statements(), encoding="utf8")
        return 0
    if shutil.which("coqc") is None:
        print(f"error: coqc is missing; on Debian or Ubuntu: {INSTALL}", file=sys.stderr)
        return 2
    start = time.perf_counter()
    faults = check() or (0 if options.planted is None else planted(options.planted))
    print(f"in {time.perf_counter() - start:.0f} s")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
