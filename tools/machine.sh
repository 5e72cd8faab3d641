#!/usr/bin/env bash
# What a machine needs, and the virtual environments: setup | setup-python | setup-airflow | need COMMAND PACKAGE... | doctor.
# The Makefile calls it.
#
# Environment: PYTHON (interpreter for .venv, default python3.11), TORCH (requirement given to pip, default torch==2.13.0).
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3.11}
TORCH=${TORCH:-torch==2.13.0}
DISTRIBUTIONS=(core control agents pipelines loaders training)
# The certificates that the system trusts count, as for every other client on it.
export UV_SYSTEM_CERTS=1
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore DEBIAN_FRONTEND=noninteractive
unset PYTHONDONTWRITEBYTECODE PYTHONPATH PYTHONHOME VIRTUAL_ENV

say() { printf '%s\n' "$*" >&2; }
die() { say "make: $*"; exit 1; }

# ---- Debian packages

apt_names() { awk '!/^#/ && NF {print $1}' requirements/apt.txt; }

apt_missing() { # names of the packages that are not installed
  command -v dpkg-query >/dev/null || return 0
  local name
  for name in "$@"; do
    [[ $(dpkg-query -W -f '${Status}' "$name" 2>/dev/null) == "install ok installed" ]] || printf '%s ' "$name"
  done
}

apt_need() { # install as root; print the one line to a user
  local missing
  missing=$(apt_missing "$@")
  [[ -n $missing ]] || return 0
  command -v apt-get >/dev/null || die "install these first, by the names your system gives them: $missing"
  [[ $(id -u) == 0 ]] || die "missing packages; type: sudo apt-get install -y $missing"
  say "apt-get install $missing"
  # shellcheck disable=SC2086  # a list of words on purpose
  apt-get install -qq -y --no-install-recommends $missing >/dev/null </dev/null 2>&1 || {
    apt-get update -qq </dev/null >&2
    apt-get install -qq -y --no-install-recommends $missing </dev/null >&2
  }
}

# ---- Python

python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

need_python() {
  [[ $(python_version "$PYTHON") == 3.11 ]] || apt_need python3.11 python3.11-venv
  local found
  found=$(python_version "$PYTHON")
  [[ $found == 3.11 ]] || die ".venv needs Python 3.11 and $PYTHON is ${found:-missing}: install it, or name it: make setup PYTHON=/path/to/python3.11"
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || apt_need python3.11-venv
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || die "$PYTHON cannot make virtual environments (no ensurepip): install its venv package"
}

make_venv() { # a folder that has a working pip
  if ! "$1/bin/python" -m pip --version >/dev/null 2>&1; then
    say "making $1"
    "$PYTHON" -m venv --clear "$1"
  fi
}

pinned() { awk -F '[= ]+' -v name="$1" '$1 == name {print $2; exit}' requirements/all.txt; }

install_uv() { # into a venv, at the locked version, with pip
  local version
  version=$(pinned uv)
  [[ $("$1/bin/uv" --version 2>/dev/null) == "uv $version"* ]] || "$1/bin/python" -m pip install -q "uv==$version"
}

locked() { # uv is given a complete lock, so it resolves nothing and cannot choose another torch
  "$1/bin/uv" pip install -q --python "$1/bin/python" --no-deps --compile-bytecode -r "$2"
}

# ---- stamps: an input that changed is installed again, and nothing else is done

stamp_of() { # files...: a hash of their content, of TORCH, and of where the tree stands (editable installs point there)
  { printf '%s\n' "$TORCH" "$PWD"; cat tools/machine.sh "$@"; } | sha256sum | cut -d ' ' -f 1
}

main_stamp() { stamp_of requirements/all.txt requirements/apt.txt "${DISTRIBUTIONS[@]/%//pyproject.toml}"; }
airflow_stamp() { stamp_of requirements/airflow.txt {core,pipelines}/pyproject.toml; }

current() { # venv stamp
  [[ -x $1/bin/python && $(cat "$1/kinemill.stamp" 2>/dev/null) == "$2" ]]
}

setup() { # "" or python-only: without the Debian packages that only tests and clusters need, so without root
  local stamp
  stamp=$(main_stamp)
  current .venv "$stamp" && return 0
  stamp=${1:+$1 }$stamp
  current .venv "$stamp" && return 0
  local start=$SECONDS
  need_python
  # shellcheck disable=SC2046  # a list of words on purpose
  [[ -n ${1:-} ]] || apt_need $(apt_names)
  make_venv .venv
  say "installing $TORCH with pip"
  .venv/bin/python -m pip install -q "$TORCH"
  say "installing the locked packages and the six distributions"
  install_uv .venv
  locked .venv requirements/all.txt
  .venv/bin/uv pip install -q --python .venv/bin/python --no-deps --no-build-isolation "${DISTRIBUTIONS[@]/#/-e./}"
  .venv/bin/uv pip check -q --python .venv/bin/python || .venv/bin/uv pip check --python .venv/bin/python
  printf '%s\n' "$stamp" >.venv/kinemill.stamp
  say "made .venv in $((SECONDS - start)) s"
}

setup_airflow() {
  local stamp
  stamp=$(airflow_stamp)
  current .venv-airflow "$stamp" && return 0
  local start=$SECONDS
  need_python
  make_venv .venv-airflow
  install_uv .venv-airflow
  locked .venv-airflow requirements/airflow.txt
  .venv-airflow/bin/python -m pip install -q 'hatchling>=1.27' editables
  .venv-airflow/bin/uv pip install -q --python .venv-airflow/bin/python --no-deps --no-build-isolation -e./core -e./pipelines
  printf '%s\n' "$stamp" >.venv-airflow/kinemill.stamp
  say "made .venv-airflow in $((SECONDS - start)) s"
}

# ---- doctor

BAD=0
good() { printf '  ok       %s\n' "$*"; }
bad() { BAD=1; printf '  MISSING  %s\n' "$*"; }
note() { printf '  -        %s\n' "$*"; }

doctor() {
  echo "needed:"
  local tool missing free
  for tool in git make; do
    if command -v "$tool" >/dev/null; then good "$tool"; else bad "$tool: apt-get install $tool"; fi
  done
  if [[ $(python_version "$PYTHON") == 3.11 ]]; then good "Python 3.11 ($PYTHON)"; else bad "Python 3.11: $PYTHON is $(python_version "$PYTHON" || true)"; fi
  if "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then good "venv and ensurepip"; else bad "ensurepip: apt-get install python3.11-venv"; fi
  # shellcheck disable=SC2046  # a list of words on purpose
  missing=$(apt_missing $(apt_names))
  if [[ -z $missing ]]; then good "Debian packages of requirements/apt.txt"; else bad "Debian packages: apt-get install $missing"; fi
  free=$(df -Pk . | awk 'NR == 2 {print int($4 / 1048576)}')
  if ((free >= 5)); then good "disk: $free GiB free"; else bad "disk: $free GiB free, 5 needed"; fi
  if current .venv "$(main_stamp)"; then
    good ".venv is current"
    if .venv/bin/uv pip check -q --python .venv/bin/python 2>/dev/null; then good ".venv fits together"; else bad ".venv does not fit together: .venv/bin/uv pip check"; fi
    if tool=$(.venv/bin/python -c 'import torch; print(torch.__version__)' 2>/dev/null); then good "torch $tool"; else bad "torch does not import"; fi
  else
    bad ".venv is missing or old: make setup"
  fi
  echo "for some tests only:"
  if current .venv-airflow "$(airflow_stamp)"; then good ".venv-airflow is current"; else note ".venv-airflow: make setup-airflow"; fi
  if [[ -e /dev/nvidia0 ]]; then good "an NVIDIA GPU"; else note "no NVIDIA GPU: the gpu layer is skipped"; fi
  if [[ $(id -u) == 0 ]]; then good "root"; else note "not root: tests with containers and network namespaces are skipped"; fi
  return $BAD
}

# ---- one at a time

mkdir -p build
case ${1:-} in
  setup) exec 9>build/setup.lock; flock 9; setup ;;
  setup-python) exec 9>build/setup.lock; flock 9; setup python-only ;;
  setup-airflow) exec 9>build/setup.lock; flock 9; setup_airflow ;;
  need) command -v "$2" >/dev/null || apt_need "${@:3}" ;;
  doctor) doctor ;;
  *) die "tools/machine.sh setup | setup-python | setup-airflow | need COMMAND PACKAGE... | doctor" ;;
esac
