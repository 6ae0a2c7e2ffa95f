"""Manual pages, completions, `make install` and the Debian package: written out of the tables, and good in the eyes of those who read
them. Tools that are not there (zsh, fish, dpkg-shlibdeps) leave their part out. The program is $MLX_BUN."""
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MLX_BUN = os.environ.get("MLX_BUN", str(ROOT / "build/mlx-bun"))
BUILD = Path(MLX_BUN).resolve().parent


def run(*args, status=0, **kw):
    p = subprocess.run([str(a) for a in args], capture_output=True, text=True, cwd=ROOT, timeout=300, **kw)
    assert status is None or p.returncode == status, (args, p.returncode, p.stdout[-2000:], p.stderr[-2000:])
    return p


def verbs():
    return re.findall(r"^  ([a-z-]+) ", run(MLX_BUN, "help").stdout, re.M)


def has(tool):
    return shutil.which(tool) is not None


# --- manual pages ---


def test_manual_pages_of_all_verbs():
    """A page a verb with every flag that its --help lists; nothing that roff warns about."""
    names = verbs()
    assert {"serve", "generate", "fit", "completion", "help"} <= set(names)
    program = run(MLX_BUN, "help", "--man").stdout
    for name in names:
        page = run(MLX_BUN, "help", name, "--man").stdout
        assert page.startswith('.\\"') and f".TH MLX-BUN-{name.upper()} 1" in page and "mlx\\-bun\\-" + name.replace("-", "\\-") in program
        shown = run(MLX_BUN, "help", name).stdout.split("accepted without effect")[0]
        for flag in re.findall(r"^  (?:-\w, )?--([a-z0-9-]+)", shown, re.M):
            assert "\\-\\-" + flag.replace("-", "\\-") in page, (name, flag)
        check_roff(page)
    check_roff(program)


def check_roff(page):
    for line in page.splitlines():
        assert not line.startswith("'"), line
        assert not line.startswith(".") or re.match(r"\.(TH|SH|PP|TP|RS|RE|nf|fi|B|\\\")", line), line
    if has("groff"):
        p = run("groff", "-man", "-Tutf8", "-ww", "-K", "utf8", input=page, status=None)
        assert p.returncode == 0 and p.stderr == "" and "NAME" in re.sub(".\x08", "", p.stdout)


# --- completion ---


def complete(script, *words):
    """What bash would offer for the last word."""
    test = f'''source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _mlx_bun; printf '%s\\n' "${{COMPREPLY[@]}}"'''
    env = {**os.environ, "PATH": f"{BUILD}:{os.environ['PATH']}", "HF_HUB_CACHE": "/dev/null/none"}
    return run("bash", "-c", test, "bash", script, "mlx-bun", *words, env=env).stdout.split()


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory):
    path = tmp_path_factory.mktemp("bash") / "mlx-bun"
    path.write_text(run(MLX_BUN, "completion", "bash").stdout)
    run("bash", "-n", path)
    return path


def test_completion_of_bash(bash_script):
    assert set(verbs()) <= set(complete(bash_script, ""))
    assert complete(bash_script, "ser") == ["serve"]
    assert "--port" in complete(bash_script, "serve", "--p") and "--max-tokens" not in complete(bash_script, "fit", "--m")
    assert complete(bash_script, "serve", "--tier", "") == ["l1", "l2", "f32"]
    assert complete(bash_script, "serve", "--thinking", "t") == ["true"]
    assert "starter" in complete(bash_script, "serve", "") and "starter" in complete(bash_script, "generate", "--model", "st")
    assert complete(bash_script, "help", "gener") == ["generate"] and complete(bash_script, "completion", "f") == ["fish"]
    assert complete(bash_script, "serve", "--port", "") == []
    assert "tests/" in [c + "/" for c in complete(bash_script, "serve", "--cache-dir", "tes")]
    assert "Makefile" in complete(bash_script, "generate", "--batch-file", "Mak")


def test_every_flag_is_completed_in_every_shell():
    scripts = {s: run(MLX_BUN, "completion", s).stdout for s in ("bash", "zsh", "fish")}
    for name in verbs():
        for flag in re.findall(r"^  (?:-\w, )?--([a-z0-9-]+)", run(MLX_BUN, "help", name).stdout, re.M):
            assert f"--{flag}" in scripts["bash"] and re.search(rf"'\*?--{flag}=?\[", scripts["zsh"]), (name, flag)
            assert re.search(rf"from {name}[^']*' -l {flag} ", scripts["fish"]), (name, flag)
    for shell, text in scripts.items():
        if has(shell):
            run(shell, "-n", "/dev/stdin", input=text)
    assert "which shell" in run(MLX_BUN, "completion", "csh", status=2).stderr
    assert "which shell" in run(MLX_BUN, "completion", status=2).stderr


# --- install and package ---


def build_is_default():
    return (BUILD / "libmlxbun.so").exists() and BUILD.parent == ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    if not build_is_default():
        pytest.skip("no library beside the program")
    where = tmp_path_factory.mktemp("root")
    run("make", "-s", f"BUILD={BUILD.name}", f"DESTDIR={where}", "PREFIX=/opt/x", "install-files")
    return where


def test_make_install(installed):
    top = installed / "opt/x"
    for name in ("bin/mlx-bun", "include/mlxbun.h", "lib/libmlxbun.so", "lib/pkgconfig/mlxbun.pc", "share/man/man1/mlx-bun.1",
                 "share/bash-completion/completions/mlx-bun", "share/zsh/site-functions/_mlx-bun",
                 "share/fish/vendor_completions.d/mlx-bun.fish", *(f"share/man/man1/mlx-bun-{v}.1" for v in verbs())):
        assert (top / name).exists() and (top / name).stat().st_size > 0, name
    assert not [p for p in installed.iterdir() if p.name != "opt"]
    assert run(top / "bin/mlx-bun", "--version").stdout == run(MLX_BUN, "--version").stdout
    run("make", "-s", f"BUILD={BUILD.name}", f"DESTDIR={installed}", "PREFIX=/opt/x", "uninstall")
    assert [str(p) for p in top.rglob("*") if not p.is_dir()] == []


@pytest.mark.skipif(not (has("dpkg-deb") and has("dpkg-shlibdeps")), reason="no dpkg-dev")
def test_debian_package(tmp_path):
    """What is in the package, and that its control file asks for the libraries that the program is linked with."""
    if not build_is_default():
        pytest.skip("no library beside the program")
    for name in ("mlx-bun", "libmlxbun.so"):
        shutil.copy(BUILD / name, tmp_path / name)
    fast = {**os.environ, "DPKG_DEB_COMPRESSOR_TYPE": "gzip", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}
    package = run("tools/deb", tmp_path, "0.1.0", env=fast).stdout.split()[-1]
    names = {line.split()[5] for line in run("dpkg-deb", "-c", package).stdout.splitlines()}
    for name in ("./usr/bin/mlx-bun", "./usr/lib/libmlxbun.so.0", "./usr/share/man/man1/mlx-bun-serve.1.gz", "./etc/default/mlx-bun",
                 "./usr/share/bash-completion/completions/mlx-bun", "./usr/share/zsh/vendor-completions/_mlx-bun",
                 "./usr/share/fish/vendor_completions.d/mlx-bun.fish", "./usr/lib/systemd/system/mlx-bun.service",
                 "./usr/share/doc/mlx-bun/copyright"):
        assert name in names, name
    control = run("dpkg-deb", "-f", package).stdout
    assert "Package: mlx-bun" in control and "Version: 0.1.0" in control
    depends = re.search(r"^Depends: (.*)$", control, re.M)[1]
    for library in ("libc6", "libmicrohttpd", "libjansson4", "libsqlite3-0", "libcurl4", "libpcre2-8-0", "libxxhash0", "libzstd1"):
        assert library in depends, (library, depends)
    run("dpkg-deb", "-x", package, tmp_path / "x")
    run("dpkg-deb", "-e", package, tmp_path / "e")
    run("md5sum", "-c", "--quiet", tmp_path / "e/md5sums", status=None)
    sums = (tmp_path / "e/md5sums").read_text().split()[1::2]
    assert "usr/bin/mlx-bun" in sums and (tmp_path / "e/conffiles").read_text() == "/etc/default/mlx-bun\n"
    assert run(tmp_path / "x/usr/bin/mlx-bun", "--version").stdout.startswith("mlx-bun 0.1.0")


@pytest.mark.skipif(not (has("systemd-analyze") and Path("/usr/lib/systemd/system/sysinit.target").exists()), reason="no systemd")
def test_unit_file(tmp_path):
    """systemd knows every line of the unit and has nothing to say; a wrong one it names."""
    text = (ROOT / "tools/package/mlx-bun.service").read_text()
    assert "ExecStart=/usr/bin/mlx-bun serve $ARGS\n" in text and "DynamicUser=yes" in text

    def said(text):
        unit = tmp_path / "mlx-bun.service"
        unit.write_text(text.replace("/usr/bin/mlx-bun", str(MLX_BUN)))
        p = run("systemd-analyze", "verify", "--man=no", unit, status=None)
        return p.stdout + p.stderr
    assert said(text) == ""
    assert "PrivatTmp" in said(text.replace("PrivateTmp", "PrivatTmp"))
