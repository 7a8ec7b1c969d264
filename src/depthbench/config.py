"""Read the configuration: the file and `--config` values pass the same models, and all errors come at once.

No torch here: a dry-run imports this module.
"""

import difflib
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from depthbench.designs import DESIGNS
from depthbench.errors import UserError
from depthbench.schema import TASK_FIELDS, Config, Strict, Study, Suite, check_templates

KEYS = sorted({key for model in Strict.__subclasses__() for key in model.model_fields})


def load(raw: dict[str, Any]) -> Config:
    """Check the merged mapping of file and command line.

    Raises:
        UserError: E-CONFIG, one line for each problem, with its key path, value and what is wanted.
    """
    raw = dict(raw)
    recipes = raw.get("recipes")
    if isinstance(recipes, dict):
        raw["recipes"] = {n: _extend(recipes, n) if isinstance(r, dict) else r for n, r in recipes.items()}
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise UserError("E-CONFIG", *dict.fromkeys(_describe(e) for e in error.errors())) from None
    if problems := list(_cross_check(config)):
        raise UserError("E-CONFIG", *problems)
    return config


def lookup_rate(config: Config, scale: str, design: str) -> str:
    """Return the declared rate of a design: of the scale if it has one, else of the design."""
    rates = config.scales[scale].lr
    return rates.get(design, rates.get("default", config.designs[design].lr))


def lookup_grid(config: Config, scale: str, design: str) -> list[str] | None:
    """Return the rates of the sweep: of the scale if it has some, else of the design."""
    grids = config.scales[scale].grid
    return grids.get(design, grids.get("default", config.designs[design].grid))


def designs_of(config: Config, suite: Suite) -> list[str]:
    """Return the designs of a part of a suite; `all` are those that are no variant of another."""
    own = [name for name, design in config.designs.items() if design.residual is None]
    return own if suite.designs == "all" else suite.designs


def _merge(base: dict, over: dict) -> dict:
    out = dict(base)
    for key, value in over.items():
        out[key] = _merge(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def _extend(recipes: dict, name: str, seen: tuple[str, ...] = ()) -> dict:
    """A recipe with what it `extends` filled in below it."""
    own = dict(recipes[name])
    base = own.pop("extends", None)
    if base is None:
        return own
    if not isinstance(base, str) or not isinstance(recipes.get(base), dict) or base in (*seen, name):
        known = ", ".join(str(other) for other in recipes if other != name)
        raise UserError("E-CONFIG", f"recipes.{name}.extends: {base!r} is no other recipe; known: {known}")
    return _merge(_extend(recipes, base, (*seen, name)), own)


def _describe(error: Any) -> str:
    # tuples of pydantic's own steps ("function-before[...]") say nothing to a user
    where = ".".join(str(p) for p in error["loc"] if "[" not in str(p))
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(error["loc"][-1]), KEYS, 1)
        return f"{where}: unknown key" + (f"; did you mean {near[0]}?" if near else "")
    message = error["msg"].removeprefix("Value error, ").replace("Input should", "should")
    value = "" if error["type"] == "missing" else f" (got {error['input']!r:.80})"
    return f"{where}: {message}{value}"


def _cross_check(config: Config) -> Iterator[str]:
    """Problems that lie between keys."""
    if config.study not in config.studies:
        yield f"study: {config.study!r} is not declared; known: {', '.join(config.studies)}"
    for name, design in config.designs.items():
        if (residual := design.residual or name) not in DESIGNS:
            yield f"designs.{name}: no file residuals/{residual}.py; known: {', '.join(DESIGNS)}"
        for key, only in (("init", "mhc"), ("hc_readout", "hc")):
            if key in design.model_fields_set and residual != only:
                yield f"designs.{name}.{key}: a key of residual {only}, not of {residual}; take it out"
    by_scale = {f"by_scale.{name}": request for name, request in config.resources.by_scale.items()}
    for name, request in {"default": config.resources.default, **by_scale}.items():
        if request.gpu % request.nodes:
            yield f"resources.{name}.gpu: {request.gpu} does not divide over nodes: {request.nodes}"
    for scale in sorted(set(config.resources.by_scale) - set(config.scales)):
        yield f"resources.by_scale.{scale}: no such scale; known: {', '.join(config.scales)}"
    for key, by_design in ((k, getattr(s, k)) for s in config.scales.values() for k in ("lr", "grid")):
        for design in sorted(set(by_design) - {"default", *config.designs}):
            yield f"scales.*.{key}.{design}: no such design; known: {', '.join(config.designs)}"
    for name, corpus in config.corpora.items():
        if corpus.source == "wheels" and not corpus.origins:
            yield f"corpora.{name}.origins: name at least one origin"
        if corpus.source == "files" and not corpus.paths:
            yield f"corpora.{name}.paths: name at least one file"
    for name in TASK_FIELDS:
        yield from check_templates(name, getattr(config.tasks, name))
    for name, study in config.studies.items():
        yield from _check_study(config, f"studies.{name}", study)


def _check_study(config: Config, where: str, study: Study) -> Iterator[str]:
    if not study.suites:
        yield f"{where}.suites: declare at least one"
    for suite_name, parts in study.suites.items():
        if any(part.recipe for part in parts):
            # tables and figures would show two recipes as one
            yield f"{where}.suites.{suite_name}.recipe: only control suites take another recipe; put it under controls"
    for suite_name in ("main", "backbone"):
        yield from _check_compared(f"{where}.suites.{suite_name}", study.suites.get(suite_name, []))
    if study.recipe not in config.recipes:
        yield f"{where}.recipe: {study.recipe!r} is not declared; known: {', '.join(config.recipes)}"
    if study.corpus not in config.corpora:
        yield f"{where}.corpus: {study.corpus!r} is not declared; known: {', '.join(config.corpora)}"
    every = (study.suites | study.controls).values()
    widths = sorted({d for parts in every for part in parts for _, d in part.shapes})
    if uneven := [str(d) for d in widths if d % (2 * study.n_heads)]:
        need = f"widths must be multiples of 2 x {study.n_heads} heads"
        yield f"{where}.n_heads: {study.n_heads} gives no even head size with width {', '.join(uneven)}; {need}"
    for scale in sorted({part.scale for parts in every for part in parts} & set(config.scales)):
        groups = config.scales[scale].n_kv_heads
        if groups and study.n_heads % groups:
            yield f"scales.{scale}.n_kv_heads: {groups} does not divide {where}.n_heads, {study.n_heads}"
    depths = sorted({depth for part in study.suites.get("main", []) for depth, _ in part.shapes})
    if depths and (unknown := sorted({study.depths.one, *study.depths.three} - set(depths))):
        yield f"{where}.depths: {unknown[0]} is no depth of the suite main; known: {', '.join(map(str, depths))}"
    if study.recipe in config.recipes and study.calibration.tokens > config.recipes[study.recipe].sequence_length:
        T = config.recipes[study.recipe].sequence_length
        yield f"{where}.calibration.tokens: {study.calibration.tokens} is longer than a window of the recipe, {T}"
    if both := sorted(set(study.suites) & set(study.controls)):
        yield f"{where}.controls.{both[0]}: is the name of a suite, too; take another one"
    for kind, named in (("suites", study.suites), ("controls", study.controls)):
        for suite_name, parts in named.items():
            for part in parts:
                yield from _check_suite(config, f"{where}.{kind}.{suite_name}", part)


def _check_compared(where: str, parts: list[Suite]) -> Iterator[str]:
    """Figures draw a suite of shapes as one line for each design: of one budget, at one rate."""
    if len(scales := sorted({part.scale for part in parts})) > 1:
        yield f"{where}.scale: {' and '.join(scales)}, but its shapes are compared; put other budgets into ladder"
    if any(part.lr == "grid" or (part.lr != "own" and len(part.lr) > 1) for part in parts):
        yield f"{where}.lr: several rates, but its shapes are compared; put a sweep into sweep"


def _check_suite(config: Config, where: str, suite: Suite) -> Iterator[str]:
    if suite.scale not in config.scales:
        yield f"{where}.scale: {suite.scale!r} is not declared; known: {', '.join(config.scales)}"
        return
    if suite.recipe and suite.recipe not in config.recipes:
        yield f"{where}.recipe: {suite.recipe!r} is not declared; known: {', '.join(config.recipes)}"
    for design in designs_of(config, suite):
        if design not in config.designs:
            yield f"{where}.designs: {design!r} is not declared; known: {', '.join(config.designs)}"
        elif suite.lr == "grid" and lookup_grid(config, suite.scale, design) is None:
            yield f"{where}.lr: grid, but neither scales.{suite.scale} nor designs.{design} has one"
