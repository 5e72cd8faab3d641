# Sourced by the scripts beside it: one virtual environment per peer, outside the checkout, made once.
# Environment: KINEMILL_PEERS (folder, default <XDG cache>/kinemill/peers), PYTHON (default python3.11), TORCH.
set -euo pipefail
umask 022
PEERS=${KINEMILL_PEERS:-${XDG_CACHE_HOME:-$HOME/.cache}/kinemill/peers}
PYTHON=${PYTHON:-python3.11}
TORCH=${TORCH:-torch==2.13.0}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

make_env() { # NAME: sets ENV_DIR and PIP; leaves early if it was finished before with this very script
    ENV_DIR=$PEERS/$1
    STAMP=$(cat "$HERE/$1.sh" "$HERE/common.sh" "$HERE"/patch_*.py | sha256sum | cut -d' ' -f1)
    if [[ $(cat "$ENV_DIR/done" 2>/dev/null) == "$STAMP" ]]; then
        echo "$ENV_DIR is ready" >&2
        exit 0
    fi
    rm -rf "$ENV_DIR"
    mkdir -p "$PEERS"
    "$PYTHON" -m venv "$ENV_DIR"
    PIP=("$ENV_DIR/bin/pip" install --quiet --disable-pip-version-check)
}

finish_env() { # NAME: what was installed, for the benchmark's notes; the stamp last
    "$ENV_DIR/bin/pip" list --format=freeze > "$ENV_DIR/versions.txt"
    echo "$STAMP" > "$ENV_DIR/done"
    echo "$ENV_DIR is ready" >&2
}
