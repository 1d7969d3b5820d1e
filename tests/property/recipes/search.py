"""Trains many recipes, counts what they covered, and keeps those that went wrong, made as simple as they can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from .recipe import FIELDS, Recipe
from .verdict import Verdict

Judge = Callable[[Recipe], Verdict]


@dataclass
class Search:
    judge: Judge
    covered: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[tuple[Recipe, Verdict]] = field(default_factory=list)

    def look(self, recipe: Recipe) -> Verdict:
        verdict = self.judge(recipe)
        self._count(recipe, verdict)
        if verdict.problem:
            self.wrong.append((recipe, verdict))
        return verdict

    def _count(self, recipe: Recipe, verdict: Verdict) -> None:
        for what, value in seen(recipe, verdict):
            self.covered.setdefault(what, Counter())[value] += 1

    def report(self) -> str:
        """What was covered, a line for each sort."""
        lines = []
        for what, counter in self.covered.items():
            lines.append(f"{what}: {', '.join(f'{value} {count}' for value, count in counter.most_common())}")
        return "\n".join(lines)


def seen(recipe: Recipe, verdict: Verdict) -> list[tuple[str, str]]:
    """What a recipe covers: pairs of a sort and a value."""
    found = [
        ("outcome", verdict.kind),
        ("strategy", recipe.strategy),
        ("ranks", str(recipe.world)),
        *(("settings", f"{key}={value}") for key, value in recipe.settings.items()),
        *(("parts", part) for part in dict.fromkeys(recipe.parts)),
        ("model given as", recipe.given),
        ("optimizer", recipe.optimizer),
        *(("options", option) for option, value in recipe.options.items() if value and option not in ("lr", "eps")),
        ("loss", recipe.loss + (" with weights" if recipe.weights else "")),
        ("groups", str(recipe.groups)),
        ("schedule", f"{recipe.schedule} per {recipe.interval}" if recipe.schedule else "none"),
        ("precision", recipe.precision),
        ("features", recipe.features),
        ("returns", recipe.returns),
        *(("rows", special) for special in recipe.data),
    ]
    if 0 in recipe.rows:
        found.append(("rows", "a rank without any"))
    if recipe.accumulation > 1:
        found.append(("steps", "accumulated"))
    if recipe.clip is not None:
        found.append(("steps", "clipped"))
    if recipe.stop is not None:
        found.append(("steps", "stopped"))
    if recipe.thaw is not None:
        found.append(("steps", f"with a stem that is frozen at times, by {recipe.thaw}"))
    if recipe.counts:
        found.append(("steps", "counted by a callback"))
    if recipe.best:
        found.append(("steps", "best epoch"))
    if verdict.fitted is not None and verdict.fitted.resumed:
        found.append(("steps", "resumed"))
    if verdict.trained is not None and verdict.trained.skipped:
        found.append(("steps", "some skipped (fp16)"))
    if verdict.trained is not None and verdict.trained.idle:
        found.append(("steps", "with parameters that nobody used"))
    return found


def simplified(recipe: Recipe, judge: Judge, kind: str, tries: int = 60) -> Recipe:
    """The recipe with all at its default that need not be otherwise for the same kind of problem."""
    changed = True
    while changed:
        changed = False
        for simpler in _simpler(recipe):
            if tries == 0:
                return recipe
            tries -= 1
            if judge(simpler).kind == kind:
                recipe, changed = simpler, True
                break
    return recipe


def _simpler(recipe: Recipe) -> list[Recipe]:
    """Recipes that are a step simpler, the simplest first."""
    default = Recipe()
    found = [replace(recipe, **{name: getattr(default, name)}) for name in FIELDS if name != "strategy"]
    found += [replace(recipe, parts=recipe.parts[:i] + recipe.parts[i + 1 :]) for i in range(len(recipe.parts))]
    found += [replace(recipe, rows=recipe.rows[:-1])] if recipe.world > 2 else []
    for name in ("options", "settings"):
        given = getattr(recipe, name)
        found += [
            replace(recipe, **{name: {k: v for k, v in given.items() if k != key}}) for key in given if key != "lr"
        ]
    now = asdict(recipe)
    return [each for each in found if asdict(each) != now]
