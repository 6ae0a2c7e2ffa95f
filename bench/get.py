"""get.py: how fast `mlx-bun get` is beside curl: the same file from the same server on this machine, in alternation.

curl writes the file; mlx-bun writes it, hashes it and checks the hash (sha256). The server is a process of its own and sends by
sendfile, so that it costs neither side more than the kernel does. Each round uses a new file on the same disk; what was written is
removed between rounds, outside the time. Prints for each side the median of wall time and of the processor time of the client alone
(user + system), and wall of curl / wall of mlx-bun: the bar is 0.90 where the processor has SHA instructions and a second core is
free. On a loaded machine processor time says more: it does not depend on who else runs.

Usage: get.py BUILD [--mb 1000] [--rounds 5] [--dir FOLDER] [--json]
"""
import argparse
import hashlib
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO, COMMIT, NAME = "bench/large", "c" * 40, "model.safetensors"


def make_file(path, size):
    """Weights by their header, noise otherwise; its sha256."""
    header = json.dumps({"t": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    sha, piece = hashlib.sha256(), os.urandom(1 << 20)
    with open(path, "wb") as f:
        for data in (len(header).to_bytes(8, "little"), header):
            f.write(data)
            sha.update(data)
        for at in range(0, size, len(piece)):
            data = piece[:size - at]
            f.write(data)
            sha.update(data)
    return sha.hexdigest()


def serve(listening, path, sha):
    """The hub: a listing of one file, and that file. One connection at a time is enough here."""
    size = os.path.getsize(path)
    listing = json.dumps({"id": REPO, "sha": COMMIT, "private": False, "siblings": [
        {"rfilename": NAME, "size": size, "blobId": "0" * 40, "lfs": {"sha256": sha, "size": size}}]}).encode()
    while True:
        c, _ = listening.accept()
        with c, open(path, "rb") as f:
            request = b""
            while b"\r\n\r\n" not in request and (got := c.recv(65536)):
                request += got
            if b"/api/models/" in request:
                c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(listing) + listing)
            elif request:
                c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size)
                try:
                    while os.sendfile(c.fileno(), f.fileno(), None, 1 << 24):
                        pass
                except (BrokenPipeError, ConnectionResetError):
                    pass


def timed(args, env, out):
    """(wall seconds, processor seconds) of a command that has to succeed."""
    begin = time.perf_counter()
    p = subprocess.Popen(args, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    error = p.stderr.read()
    _, status, used = os.wait4(p.pid, 0)
    wall = time.perf_counter() - begin
    p.returncode = os.waitstatus_to_exitcode(status)
    shutil.rmtree(out, ignore_errors=True)
    if p.returncode != 0:
        raise SystemExit(f"get.py: {args[0]} failed: {error.decode()[-400:]}")
    return wall, used.ru_utime + used.ru_stime


def measure(build, folder, mb, rounds):
    source, out = folder / "source", folder / "out"
    sha = make_file(source, mb * 1000 * 1000)
    listening = socket.create_server(("127.0.0.1", 0), backlog=16)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = os.fork()
    if server == 0:
        try:
            serve(listening, source, sha)
        finally:
            os._exit(0)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "MLX_BUN_"))} | {
        "HF_ENDPOINT": url, "HF_HOME": str(out / "hf"), "MLX_BUN_CACHE": str(out / "own"), "no_proxy": "*"}
    sides = {"curl": ["curl", "-s", "-S", "--create-dirs", "-o", str(out / "file"), f"{url}/{REPO}/resolve/{COMMIT}/{NAME}"],
             "mlx-bun": [str(Path(build) / "mlx-bun"), "get", REPO, "--quiet"]}
    figures = {name: [] for name in sides}
    try:
        for i in range(rounds + 1):
            for name in sorted(sides, reverse=i % 2 == 1):  # who comes first changes
                figures[name].append(timed(sides[name], env, out))
    finally:
        os.kill(server, 15)
        os.waitpid(server, 0)
    return {name: rows[1:] for name, rows in figures.items()}  # the first round warms the page cache


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("build")
    p.add_argument("--mb", type=int, default=1000)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--dir", help="where files are written; default: the temporary folder")
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-get.", dir=a.dir))
    try:
        figures = measure(a.build, folder, a.mb, a.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wall = {name: statistics.median(w for w, _ in rows) for name, rows in figures.items()}
    cpu = {name: statistics.median(c for _, c in rows) for name, rows in figures.items()}
    text = Path("/proc/cpuinfo").read_text()
    sha = bool(re.search(r"\bsha_ni\b|\bsha2\b", text))
    row = {"mb": a.mb, "rounds": a.rounds, "wall_s": wall, "processor_s": cpu, "ratio": round(wall["curl"] / wall["mlx-bun"], 3), "bar": 0.9,
           "sha_instructions": sha, "cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 2)}
    if a.json:
        print(json.dumps(row))
        return
    for name in figures:
        print(f"{name:8} {wall[name]:7.3f} s wall, {cpu[name]:6.3f} s of processor, {a.mb / wall[name]:7.0f} MB/s")
    print(f"mlx-bun get at {row['ratio']:.2f} of curl's speed (bar 0.90); SHA instructions: {'yes' if sha else 'no'}, {row['cores']} cores, load {row['load']}")


if __name__ == "__main__":
    sys.exit(main())
