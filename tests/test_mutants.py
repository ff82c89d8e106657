"""The seeded faults still fit the code; that they are caught is what `make mutants` shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_mutant_has_exactly_one_place_and_is_still_python(mutant: Mutant, tmp_path: Path) -> None:
    target = tmp_path / mutant.file
    target.parent.mkdir(parents=True)
    shutil.copy(ROOT / mutant.file, target)
    mutant.apply(tmp_path)
    compile(target.read_text(), mutant.file, "exec")
    assert all((ROOT / test).exists() for test in mutant.tests)
    assert f"def {mutant.likely}(" in (ROOT / mutant.tests[0]).read_text()


def test_no_two_mutants_have_one_name() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 12
