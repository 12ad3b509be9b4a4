"""Which of the known bugs, or which conventions, explain what a subject returns.

Every scene is compared with the oracle under every convention that shows in it; if some scene stays
unexplained, with each bug in place of its step, and then with each pair of bugs.
"""

from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from mha_book.conformance.mutants import CATALOG, Mutant, pairs
from mha_book.conformance.oracle import CONVENTIONS, RIGHT, Case, Conventions, Numbers, Steps
from mha_book.conformance.probes import SCENES, SIZES, Scene, make_case, smaller
from mha_book.conformance.subject import Interface

__all__ = ["Counterexample", "Explanation", "Trial", "counterexample", "search"]

EXACT, ROUGH = 1e-4, 3e-2
"""Tolerances: of float32, and of half precision."""

MOST_LAYOUTS = 2
"""In how many layouts pairs of bugs are looked for: there are thousands of pairs."""


class Explanation(NamedTuple):
    """What was found to explain a subject, or to come closest.

    Args:
        interface: how it was called.
        conventions: under which choices.
        settled: the conventions that show in what was tried.
        mutants: bugs that explain it all equally; empty if none was needed or none was found.
        unexplained: scenes that the formula, without bugs, does not explain.
        rough: whether it needed the tolerance of half precision.
    """

    interface: Interface
    conventions: Conventions
    settled: tuple[str, ...]
    mutants: tuple[Mutant, ...]
    unexplained: tuple[str, ...]
    rough: bool = False


class Counterexample(NamedTuple):
    """The smallest case that was found to differ from the formula."""

    scene: str
    case: Case
    got: Numbers
    expected: Numbers


class Trial:
    """An interface with its outputs, each computed once, also for several polarities of a mask.

    Example:
        >>> from mha_book.conformance.subject import function_interfaces
        >>> interface = function_interfaces(lambda q, k, v: v, layout="BNTH")[0]
        >>> Trial(interface).output("plain").shape
        (2, 7, 48)
    """

    def __init__(self, interface: Interface, outputs: dict[Any, Any] | None = None) -> None:
        self.interface = interface
        self.cases = {scene.name: make_case(scene.name) for scene in SCENES}
        self.outputs: dict[Any, Numbers | Exception] = {} if outputs is None else outputs

    @cached_property
    def always_causal(self) -> bool:
        """Return whether no output depends on a later position, without being asked."""
        case = self.cases["plain"]
        q, k, v = (np.concatenate([x[:, :, :-1], x[:, :, -1:] + 1], 2) for x in case[:3])
        changed = self.interface.call(case._replace(q=q, k=k, v=v))
        return close(changed[:, :-1], np.asarray(self.output("plain"))[:, :-1], EXACT)

    @cached_property
    def steady(self) -> bool:
        """Return whether two equal calls agree."""
        return close(self.interface.call(self.cases["plain"]), self.output("plain"), EXACT)

    @property
    def layout(self) -> tuple[str, ...]:
        """Return how it is called, but for what a mask says."""
        return tuple(word for name, word in self.interface.told.items() if name != "mask")

    def scenes(self) -> Iterator[Scene]:
        """Return the scenes that the subject has arguments for."""
        for scene in SCENES:
            possible = scene.name not in self.interface.never
            if possible and all(self.serves(need) for need in scene.needs):
                yield scene

    def serves(self, need: str) -> bool:
        """Return whether the subject has an argument, or does without what it would ask for."""
        if need == "causal mask":
            return "causal" in self.interface.roles or self.always_causal
        return need in self.interface.roles

    def output(self, name: str) -> Numbers | Exception:
        """Return what the subject gives in a scene, or what it raises."""
        case = self.cases[name]
        masked = case.mask is not None or case.causal or "required mask" in self.interface.roles
        key = name, self.layout, masked and self.interface.told.get("mask")
        if key not in self.outputs:
            try:
                self.outputs[key] = self.interface.call(case)
            except Exception as error:
                self.outputs[key] = error
        return self.outputs[key]

    def served(self) -> int:
        """Return in how many scenes the subject raises nothing."""
        outputs = (self.output(scene.name) for scene in self.scenes())
        return sum(not isinstance(output, Exception) for output in outputs)

    def fits(
        self, scene: Scene, steps: Steps, options: Iterable[Conventions], tolerance: float
    ) -> list[Conventions]:
        """Return the conventions under which the steps give what the subject gave in a scene."""
        got = self.output(scene.name)
        every = ((one, self.predicted(scene.name, steps, one)) for one in options)
        return [one for one, expected in every if agree(got, expected, scene, tolerance)]

    def predicted(self, name: str, steps: Steps, choice: Conventions) -> Numbers:
        """Return what the steps give in a scene; nothing where the bug has no result there."""
        try:
            return self.interface.expect(self.cases[name], choice, steps)
        except (ValueError, IndexError):
            return np.zeros(0)

    def explain(
        self, steps: Steps, told: dict[str, str], tolerance: float, *only: str
    ) -> Explanation:
        """Return the conventions under which the steps explain most, and what they leave."""
        conventions = Conventions()._replace(**told)
        settled: set[str] = set()
        missed = []
        for scene in self.scenes():
            if (only and scene.name not in only) or isinstance(self.output(scene.name), Exception):
                continue
            left = [name for name in scene.settles if name not in settled | told.keys()]
            options = list(self.options(conventions, left))
            found = self.fits(scene, steps, options, tolerance)
            if not found:
                missed.append(scene.name)
                continue
            conventions = found[0]
            for name in left:
                kept, tried = ({getattr(one, name) for one in some} for some in (found, options))
                settled |= {name} if kept < tried else set()
        order = tuple(name for name in CONVENTIONS if name in settled)
        rough = tolerance > EXACT
        return Explanation(self.interface, conventions, order, (), tuple(missed), rough)

    def options(self, conventions: Conventions, left: Iterable[str]) -> Iterator[Conventions]:
        """Return the conventions with every choice of those that are left open."""
        asked = "causal" in self.interface.roles  # then it is causal only if asked
        names = [name for name in left if not (name == "causal" and asked)]
        for values in product(*(CONVENTIONS[name] for name in names)):
            yield conventions._replace(**dict(zip(names, values, strict=True)))


def close(got: Any, expected: Any, tolerance: float) -> bool:
    """Return whether two outputs agree, NaN with NaN, relative to the largest expected number."""
    if isinstance(got, Exception) or got.shape != expected.shape:
        return False
    missing = np.isnan(expected)
    if not np.array_equal(np.isnan(got), missing):
        return False
    size = 1 + np.abs(expected[np.isfinite(expected)]).max(initial=0)
    return np.allclose(got[~missing], expected[~missing], 0, tolerance * size)


def agree(got: Any, expected: Numbers, scene: Scene, tolerance: float) -> bool:
    """Return whether two outputs agree in what a scene asks for."""
    if scene.finite and not isinstance(got, Exception) and got.shape == expected.shape:
        return bool(np.isfinite(got).all() == np.isfinite(expected).all())
    return close(got, expected, tolerance)


def search(trials: list[Trial], told: dict[str, str]) -> tuple[Trial, Explanation]:
    """Return the best explanation: the formula, else a bug, else two bugs, else what is nearest.

    Args:
        trials: the ways to call the subject.
        told: convention -> the choice that is meant; another one is a bug then.

    Raises:
        ValueError: the subject raises in every way to call it.
    """
    known = [one for one in trials if not isinstance(one.output("plain"), Exception)]
    if not known:
        error = trials[0].output("plain")
        raise ValueError(f"the subject cannot be called: {error}")
    for tolerance in (EXACT, ROUGH):
        plain = [x for x in known if not x.explain(RIGHT, told, tolerance, "plain").unexplained]
        if plain:  # then the layout is known: that of most axes, for a batch shows more
            best = max(plain, key=lambda one: (len(one.interface.told["layout"]), one.served()))
            known = [one for one in plain if one.layout == best.layout]
            break
    most = max(one.served() for one in known)  # a mask of the wrong kind may only raise
    known = [one for one in known if one.served() == most]
    for tolerance in (EXACT, ROUGH):
        tried = []
        for trial in known:
            tried.append((trial, trial.explain(RIGHT, told, tolerance)))
            if not tried[-1][1].unexplained:
                return tried[-1]
        nearest = sorted(tried, key=lambda one: len(one[1].unexplained))
        looks = [Look(*one, told, tolerance) for one in nearest]
        for look in looks:
            if found := look.singles():
                return look.trial, look.named(found)
        likely: dict[tuple[str, ...], list[Mutant]] = {}  # pairs that explain the first scene
        for look in looks if tolerance == EXACT and known[0].steady else ():
            layout = look.trial.layout
            if layout not in likely and len(likely) < MOST_LAYOUTS:
                every = pairs(look.trial.interface.within)
                likely[layout] = [one for one in every if look.explains_two(one, look.missed[:1])]
            if found := [
                two for two in likely.get(layout, ()) if look.explains_two(two, look.missed)
            ]:
                return look.trial, look.named(found)
    return nearest[0]


class Look:
    """The bugs that explain what the formula misses in one trial.

    In each scene that it misses, a bug shows or not: a wrong fill of the mask may leave the causal
    mask alone. So of two bugs, either or both may explain a scene.
    """

    def __init__(
        self, trial: Trial, formula: Explanation, told: dict[str, str], tolerance: float
    ) -> None:
        self.trial, self.formula, self.told = trial, formula, told
        self.tolerance = tolerance
        self.bugs = [one for one in CATALOG.values() if one.within in trial.interface.within]
        self.missed = [scene for scene in SCENES if scene.name in formula.unexplained]
        self.alone = cache(lambda id, scene: self.explains(CATALOG[id], scene))
        self.changes = cache(self.shows)

    def explains(self, mutant: Mutant, scene: Scene, turned: bool = True) -> bool:
        """Return whether a bug gives what the subject gave in a scene."""
        earlier = SCENES[: SCENES.index(scene) + 1]  # the formula may have settled nothing in them
        possible = {name for one in earlier for name in one.settles}
        open_ones = possible - {*self.formula.settled} - self.told.keys()
        if not turned:
            open_ones -= {"rope"}
        options = self.trial.options(self.formula.conventions, open_ones)
        return bool(self.trial.fits(scene, Steps(**mutant.steps), options, self.tolerance))

    def singles(self) -> list[Mutant]:
        """Return every bug that explains all scenes that the formula misses."""
        return [one for one in self.bugs if all(self.alone(one.id, scene) for scene in self.missed)]

    def explains_two(self, pair: Mutant, scenes: list[Scene]) -> bool:
        """Return whether one of two bugs, or both at once, explain each scene."""
        return all(self.explained_by_two(pair, scene) for scene in scenes)

    def explained_by_two(self, pair: Mutant, scene: Scene) -> bool:
        """Return whether one of two bugs, or both at once, explain a scene."""
        ids = pair.id.split(" + ")
        if any(self.alone(id, scene) for id in ids):
            return True
        # thousands of pairs; in later scenes a bug may change another's effect
        if scene.name == "plain" and not all(self.changes(id) for id in ids):
            return False
        return self.explains(pair, scene, turned="rotate" in pair.steps)

    def shows(self, id: str) -> bool:
        """Return whether a bug changes anything in the plain scene."""
        both = RIGHT, Steps(**CATALOG[id].steps)
        got, other = (self.trial.predicted("plain", x, self.formula.conventions) for x in both)
        return not np.array_equal(got, other, equal_nan=True)

    def named(self, mutants: list[Mutant]) -> Explanation:
        """Return the explanation with those bugs that also leave right what is right."""
        known = [self.trial.explain(Steps(**x.steps), self.told, self.tolerance) for x in mutants]
        left = [len(one.unexplained) for one in known]
        best = tuple(x for x, n in zip(mutants, left, strict=True) if n == min(left))
        first = known[left.index(min(left))]
        return self.formula._replace(
            conventions=first.conventions, settled=first.settled, mutants=best
        )


def counterexample(trial: Trial, explanation: Explanation) -> Counterexample | None:
    """Return the smallest case of the first unexplained scene that the formula does not give."""
    for name in explanation.unexplained:
        for sizes in (*smaller(name), SIZES):
            case = make_case(name, sizes)  # of one decimal, which a reader can copy
            case = case._replace(q=case.q.round(1), k=case.k.round(1), v=case.v.round(1))
            try:
                got = trial.interface.call(case)
            except Exception:
                continue
            expected = trial.interface.expect(case, explanation.conventions, RIGHT)
            if not close(got, expected, EXACT):
                return Counterexample(name, case, got, expected)
    return None


def independence(trial: Trial) -> dict[str, bool]:
    """Return what must hold of any attention, without an oracle: property -> whether it does."""
    case = trial.cases["plain"]
    before = trial.output("plain")
    q = case.q.copy()
    q[-1, :, -1] += 1
    changed = trial.interface.call(case._replace(q=q))
    moved = np.abs(changed - before) > EXACT
    alone = {"sequences of a batch are independent": len(moved) == 1 or not moved[:-1].any()}
    if trial.interface.layer:
        return alone
    ones = trial.interface.call(case._replace(v=np.ones_like(case.v)))
    return alone | {
        "weights sum to one (constant values come back)": close(ones, np.ones_like(ones), ROUGH),
        "queries are independent": not moved[-1, :-1].any(),
    }
