"""What stands between a job and its images and labels, all at once, before anything is trained."""

from __future__ import annotations

from pathlib import Path

from phalanx.recipe import Finding, Split
from phalanx.recipes.detection.labels import Fault, Labels, name_places
from phalanx.recipes.detection.options import STRIDE, DetectionOptions

_WRONG = {
    "columns": ("lines are not labels", "a line is `class x y w h`"),
    "number": ("lines have words in place of numbers", "a line is `class x y w h`"),
    "range": ("boxes are outside of their image", "x, y, w and h are shares of the image"),
    "class": ("labels name a class that the data does not have", "classes are those of `names`"),
}


def check_options(options: DetectionOptions) -> list[Finding]:
    """Options that do not go together."""
    if options.size % STRIDE == 0:
        return []
    near = max(STRIDE, round(options.size / STRIDE) * STRIDE)
    return [
        Finding(
            slug="detection-size",
            what=f"image_size {options.size} is not a multiple of {STRIDE}",
            why=f"options.image_size = {options.size}; the coarsest grid has cells of {STRIDE} "
            "pixels",
            fix=f"image_size={near}",
        )
    ]


def check_names(known: dict[int, str], found: dict[int, str], file: Path) -> list[Finding]:
    """Classes of a model that was trained on other data than this."""
    if known == found:
        return []
    why = f"options.names: {_few(known)}; names: {_few(found)}"
    fix = "data=FILE with the classes that the model was trained on, in their order"
    if len(known) != len(found):
        what = f"the model knows {len(known)} classes, `{file}` names {len(found)}"
        return [Finding(slug="detection-other-classes", what=what, why=why, fix=fix)]
    return [
        Finding(
            slug="detection-other-names",
            what=f"the model's classes are called otherwise in `{file}`",
            why=why,
            fix=fix,
            severity="warning",
        )
    ]


def _few(names: dict[int, str]) -> str:
    told = ", ".join(list(names.values())[:12])
    return f"{told}, ..." if len(names) > 12 else told


def check_labels(split: Split, labels: Labels, file: Path, names: dict[int, str]) -> list[Finding]:
    """What is wrong with the images and labels of one split."""
    kinds: dict[str, list[Fault]] = {}
    for fault in labels.faults:
        kinds.setdefault(fault.kind, []).append(fault)
    findings = [
        _wrong_lines(kind, kinds[kind], split, file, names) for kind in _WRONG if kind in kinds
    ]
    if "image" in kinds:
        findings.append(_damaged(kinds["image"], labels, split))
    if "duplicate" in kinds:
        findings.append(_twice(kinds["duplicate"], split))
    findings += _unlabelled(kinds, labels, split, file)
    return findings


def _wrong_lines(
    kind: str, faults: list[Fault], split: Split, file: Path, names: dict[int, str]
) -> Finding:
    what, rule = _WRONG[kind]
    what = f"{len(faults):,} {what} in {split}: {name_places(faults)}"
    why = f"the first: {faults[0].detail}; {rule}"
    if kind == "class":
        return Finding(
            slug="detection-classes",
            what=what,
            why=why,
            fix=f"name all classes in {file} ({len(names)} now), or mend the labels",
        )
    return Finding(
        slug="detection-labels",
        what=what,
        why=why,
        fix=f"sed -n '{_line_of(faults[0])}p' {_file_of(faults[0])}; then mend it",
    )


def _file_of(fault: Fault) -> str:
    return fault.place.rpartition(":")[0] or fault.place


def _line_of(fault: Fault) -> str:
    return fault.place.rpartition(":")[2] if ":" in fault.place else "1"


def _damaged(faults: list[Fault], labels: Labels, split: Split) -> Finding:
    return Finding(
        slug="detection-images",
        what=f"{len(faults):,} of {len(labels.images):,} images in {split} cannot be used: "
        f"{name_places(faults)}",
        why=f"the first: {faults[0].detail}",
        fix=f"copy them again, or move them away: mv {faults[0].place} /tmp/",
    )


def _twice(faults: list[Fault], split: Split) -> Finding:
    return Finding(
        slug="detection-labels",
        what=f"{len(faults):,} boxes in {split} are there twice: {name_places(faults)}",
        why="the same class and the same box in one file; each counts once",
        fix="nothing; or remove the lines",
        severity="warning",
    )


def _unlabelled(
    kinds: dict[str, list[Fault]], labels: Labels, split: Split, file: Path
) -> list[Finding]:
    """Images without boxes are background, which is fine for some and not for all."""
    missing, empty = (kinds.get(kind, []) for kind in ("missing", "empty"))
    without = len(missing) + len(empty)
    if not without:
        return []
    if not len(labels.rows) and without == len(labels.images):
        return [
            Finding(
                slug="detection-labels",
                what=f"no image in {split} has a label: {len(missing):,} label files are missing, "
                f"{len(empty):,} are empty",
                why=f"{file}; the labels of .../images/a.jpg are looked for in .../labels/a.txt, "
                f"the first at {(missing or empty)[0].place}",
                fix="put the label files there; `phalanx recipes convert` makes them from VOC and "
                "COCO",
            )
        ]
    return [
        Finding(
            slug="detection-background",
            what=f"{without:,} of {len(labels.images):,} images in {split} have no boxes: "
            f"{len(missing):,} label files are missing, {len(empty):,} are empty",
            why=f"the first: {(missing or empty)[0].place}; they are taken for background",
            fix="nothing, if there is nothing to see in them",
            severity="warning" if missing else "note",
        )
    ]
