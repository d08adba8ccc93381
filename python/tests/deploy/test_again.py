"""The Go tests that `make test-go` runs once more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

PACKAGES = {
    "passes": "func TestA(t *testing.T) {}",
    "once": """func TestA(t *testing.T) {}
func TestOnce(t *testing.T) {
	t.Run("sub", func(t *testing.T) {
		if f, err := os.OpenFile("was.here", os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			f.Close()
			t.Error("the first time")
		}
	})
}""",
    "panics": """func TestA(t *testing.T) { t.Error("first") }
func TestB(t *testing.T) { panic("of the test") }""",
    "hangs": "func TestA(t *testing.T) { <-t.Context().Done() }",
    "leaves": "func TestA(t *testing.T) {}\nfunc TestMain(m *testing.M) { m.Run(); os.Exit(1) }",
    "fails": 'func TestA(t *testing.T) { t.Error("always") }',
    "unbuilt": "func TestA(t *testing.T) { undefined() }",
}


def run(folder: Path, *packages: str) -> tuple[int, str, list[str]]:
    """Runs the tests of packages, and what has failed once more: the exit code, what was said, and
    the tests that passed only then."""
    (folder / "go.mod").write_text("module again\n\ngo 1.24\n")
    for name in packages:
        (folder / name).mkdir()
        source = f'package {name}\n\nimport (\n"os"\n"testing"\n)\n\nvar _ = os.Exit\n\n'
        (folder / name / "a_test.go").write_text(source + PACKAGES[name] + "\n")
    go = ["go", "test", "-vet=off", "-timeout=5s"]
    first = subprocess.run(
        [*go, "-json", "./..."], cwd=folder, text=True, capture_output=True, timeout=100
    )
    assert first.returncode, "nothing has failed"
    (folder / "events").write_text(first.stdout)
    script = str(REPOSITORY / "packaging" / "again.py")
    again = subprocess.run(
        [sys.executable, script, "events", "flaky", "--", *go],
        cwd=folder,
        text=True,
        capture_output=True,
        timeout=100,
    )
    flaky = folder / "flaky"
    return again.returncode, again.stdout, flaky.read_text().split() if flaky.exists() else []


def test_what_fails_once_passes(tmp_path: Path) -> None:
    code, said, flaky = run(tmp_path, "once", "passes")
    assert code == 0 and flaky == ["again/once.TestOnce"], said


def test_what_is_final_keeps_no_other_package_from_it(tmp_path: Path) -> None:
    code, said, flaky = run(tmp_path, *PACKAGES)
    assert code == 1 and flaky == ["again/once.TestOnce"], said
    for name, why in {
        "panics": "panic: of the test",
        "hangs": "panic: test timed out",
        "leaves": "no test of it has failed",
        "unbuilt": "no test of it has failed",
    }.items():
        assert f"==> not run once more: again/{name}: {why}" in said
    assert "==> failed when run once more, too: again/fails: TestA" in said


def test_many_failures_are_no_bad_luck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = "\n".join(f'func Test{i}(t *testing.T) {{ t.Error("always") }}' for i in range(6))
    monkeypatch.setitem(PACKAGES, "fails", many)
    code, said, flaky = run(tmp_path, "once", "fails")
    assert code == 1 and not flaky and "more than 5 tests have failed" in said
