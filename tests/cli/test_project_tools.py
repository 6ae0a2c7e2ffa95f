"""The tools that decide whether a change is good must themselves say no when it is not. Each test runs a copy of tools/
over a small tree of its own."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture
def tree(tmp_path):
    shutil.copytree(TOOLS, tmp_path / "tools")
    for folder in ("src/base", "src/server", "src/tokenizer", "include", "tests/unit", "docs", "build"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def run(tree, *command, **env):
    p = subprocess.run([str(c) for c in command], cwd=tree, env={**os.environ, **env}, capture_output=True, text=True)
    return p.returncode, p.stdout + p.stderr


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)


def test_layers_names_forbidden_edge(tree):
    (tree / "src/server/http.h").write_text('#include "base/mem.h"\n')
    (tree / "src/base/mem.h").write_text("")
    assert run(tree, "tools/layers") == (0, "")
    (tree / "src/tokenizer/bpe.c").write_text('\n#include "server/http.h"\n')
    (tree / "src/base/mem.h").write_text('#include "tokenizer/bpe.h"\n')
    code, out = run(tree, "tools/layers")
    assert code == 1
    assert 'src/tokenizer/bpe.c:2: tokenizer may not include "server/http.h"' in out
    assert 'src/base/mem.h:1: base may not include "tokenizer/bpe.h"' in out


def test_layers_wants_a_row_for_a_new_folder(tree):
    (tree / "src/novel").mkdir()
    (tree / "src/novel/a.c").write_text("")
    code, out = run(tree, "tools/layers")
    assert code == 1 and "novel" in out


COVERED = """/* opening comment: B-001 does not count */
static void helper(void)
{
}
/* API-002 */
static void test_one(void **state)
{
    /* T1.02 */
}
static void test_b003_two(void **state)
{
}
"""
COVERED_PY = """# B-003
@decorated
def test_py():
    call("API-002")  # CFG-001
"""


def coverage_tree(tree):
    lists = tree / "spec.md"
    lists.write_text("- API-002: Second line `a|b`.\n- API-004: A.\n- API-005: B.\n- **CFG-001** A flag.\n| T1.02 | `--x` | y |\n"
                     "| B-001 ★ | area | wrong |\n| B-003 | area | wrong | right |\n")
    (tree / "tests/unit/test_a.c").write_text(COVERED)
    (tree / "tests/unit/test_p.py").write_text(COVERED_PY)
    (tree / "docs/spec-gaps.tsv").write_text("API-004-005\tnot here\n")
    assert run(tree, "tools/coverage", "--import", lists)[0] == 0
    assert run(tree, "tools/coverage")[0] == 0


def test_coverage_pages(tree):
    coverage_tree(tree)
    api = (tree / "docs/api-coverage.md").read_text()
    assert "| API-002 | Second line `a\\|b`. | tests/unit/test_a.c:test_one |" in api
    assert "| API-004 | A. | none: not here |" in api and "| API-005 | B. | none: not here |" in api
    engine = (tree / "docs/engine-coverage.md").read_text()
    assert "| CFG-001 | A flag. | tests/unit/test_p.py:test_py |" in engine
    assert "| T1.02 | `--x` · y | tests/unit/test_a.c:test_one |" in engine
    cases = (tree / "docs/cases-coverage.md").read_text()
    assert "| B-001 | area · wrong |  |" in cases
    assert "tests/unit/test_a.c:test_b003_two<br>tests/unit/test_p.py:test_py" in cases


def test_coverage_check_fails(tree):
    coverage_tree(tree)
    (tree / "tests/unit/test_p.py").unlink()
    assert run(tree, "tools/coverage")[0] == 0
    assert run(tree, "tools/coverage", "--check") == (0, "")
    results = tree / "build/test-results.txt"
    results.write_text("PASS\ttests/unit/test_a.c\ttest_one\n")
    code, out = run(tree, "tools/coverage", "--check")
    assert code == 1 and "test_b003_two carries B-003 but did not run" in out
    results.write_text("PASS\ttests/unit/test_a.c\ttest_one\nPASS\ttests/unit/test_a.c\ttest_b003_two\n")
    assert run(tree, "tools/coverage", "--check")[0] == 0
    (tree / "tests/unit/test_b.c").write_text("\n/* API-999 */\nstatic void test_x(void **state)\n{\n}\n")
    code, out = run(tree, "tools/coverage", "--check")
    assert code == 1 and "API-999 names no requirement" in out


def test_coverage_gaps(tree):
    """A line of the API has a test or a reason, never neither, never both."""
    coverage_tree(tree)
    for gaps, says in (("API-005\tx\n", "API-004 has neither"), ("API-002-005\tx\n", "API-002 has a test"),
                       ("API-004-006\tx\n", "API-006 is no requirement")):
        (tree / "docs/spec-gaps.tsv").write_text(gaps)
        code, out = run(tree, "tools/coverage", "--check")
        assert code == 1 and says in out


CMOCKA = "echo '[==========] Running %d test(s).'; echo '[       OK ] test_a'; %s"


@pytest.mark.parametrize("n, rest, counts", [
    (1, "", "1 passed, 0 failed, 0 skipped"),
    (2, "echo '[  FAILED  ] test_b'; exit 1", "1 passed, 1 failed, 0 skipped"),
    (2, "echo '[  SKIPPED ] test_b'", "1 passed, 0 failed, 1 skipped"),
    (2, "kill -SEGV $$", "1 passed, 1 failed, 0 skipped"),
    (1, "exit 66", "1 passed, 1 failed, 0 skipped"),  # a sanitizer at the end
    (2, "exit 0", "1 passed, 1 failed, 0 skipped"),  # left before its last test
    (2, "sleep 100", "1 passed, 1 failed, 0 skipped"),
])
def test_run_tests_counts(tree, n, rest, counts):
    script(tree / "build/tests/unit/test_a", CMOCKA % (n, rest))
    run(tree, "tools/run-tests", "c", "build", "build/tests/unit/test_a", TEST_TIMEOUT_S="2" if "sleep" in rest else "300")
    code, out = run(tree, "tools/run-tests", "total", "build")
    assert out.strip() == counts
    assert code == (0 if ", 0 failed" in counts else 1)


def test_run_tests_nothing_ran(tree):
    assert run(tree, "tools/run-tests", "total", "build") == (1, "0 passed, 1 failed, 0 skipped\n")


def fake_debian(tree, present, uid):
    fake = tree / "fake"
    script(fake / "dpkg-query", "".join(f"echo '{p} ii '\n" for p in present) + "echo 'libjansson-dev un '\nexit 1\n")
    script(fake / "id", f"echo {uid}\n")
    script(fake / "apt-get", f'echo "$@" >> {fake}/log; [ "$1" != "$FAIL" ] || {{ echo broken; exit 100; }}\n')
    return {"PATH": f"{fake}:{os.environ['PATH']}"}


def test_install_without_root_prints_the_command(tree):
    code, out = run(tree, "tools/install", **fake_debian(tree, ["gcc", "make"], 1000))
    assert code == 1
    line = out.strip().splitlines()[-1]
    assert line.startswith("sudo apt-get install -y ") and " libjansson-dev " in line and " gcc" not in line
    assert not (tree / "fake/log").exists()


def test_install_as_root(tree):
    env = fake_debian(tree, ["gcc", "make"], 0)
    assert run(tree, "tools/install", **env)[0] == 0
    log = (tree / "fake/log").read_text().splitlines()
    assert log[0].startswith("update") and "install -y" in log[1] and "clang-14" not in log[1]
    code, out = run(tree, "tools/install", "--ci", FAIL="install", **env)
    assert code == 1 and "broken" in out
