"""Every row of the table gives exactly its Findings, each with its three parts, and no new file."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import pytest

from phalanx.errors import Finding, UserError
from phalanx.job import check_job, gpu_findings, load_job
from tests.unit.job.wrong_jobs import GOOD, GPU_IDS, KNOWN_RECIPES, WRONG_JOBS, WrongJob


def findings_of(path: Path) -> list[Finding]:
    try:
        loaded = load_job(path)
    except UserError as error:
        return error.findings
    return check_job(loaded, known_recipes=KNOWN_RECIPES) + gpu_findings(
        loaded, GPU_IDS, cuda_visible_devices=None
    )


@pytest.mark.parametrize("wrong", WRONG_JOBS, ids=lambda wrong: wrong.name)
def test_wrong_job_gives_exactly_its_findings(wrong: WrongJob, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = wrong.prepare(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    start = monotonic()
    findings = findings_of(path)
    assert monotonic() - start < 5
    assert tuple(f.slug for f in findings) == wrong.slugs
    text = "\n".join(f"{f.what}\n{f.why}\n{f.fix}" for f in findings)
    assert all(f.what and f.why and f.fix for f in findings)
    assert [part for part in wrong.says if part not in text] == []
    assert "literal[" not in text
    assert sorted(tmp_path.rglob("*")) == before


def test_the_good_job_has_no_findings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(GOOD)
    assert findings_of(Path("job.yaml")) == []


def test_table_names_are_unique_and_many():
    names = [wrong.name for wrong in WRONG_JOBS]
    assert len(names) == len(set(names)) >= 30
