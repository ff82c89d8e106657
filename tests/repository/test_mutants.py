"""The seeded faults still fit the code, and the tests that catch them run every day; `make mutants` runs them."""

from __future__ import annotations

import ast
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


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_the_test_that_catches_a_mutant_runs_every_day(mutant: Mutant) -> None:
    tests = ast.parse((ROOT / mutant.tests[0]).read_text()).body
    [test] = [t for t in tests if isinstance(t, ast.FunctionDef) and t.name == mutant.likely]
    marks = [ast.unparse(mark) for mark in test.decorator_list]
    assert not any(mark.startswith(("pytest.mark.sampled", "pytest.mark.slow")) for mark in marks)


def test_no_two_mutants_have_one_name() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 12
