#!/bin/sh
# Finds a Python that is new enough and hands over to bootstrap.py: sh bootstrap.sh run|test|test-long|test-offload [ARGS]
if [ "${OS:-}" = Windows_NT ]; then
    echo "These scripts need Linux or macOS; on Windows use WSL." >&2
    exit 1
fi

here=$(dirname "$0")
old=
for python in "$here/../.venv/bin/python" python3 python3.14 python3.13 python3.12 python3.11 python; do
    # A candidate must answer: a pyenv shim, or the link of a removed interpreter, is there and does not run.
    version=$("$python" -ISc 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || continue
    case $version in
        3.[0-9].* | 3.10.*) old=${old:-"$version ($(command -v "$python"))"} ;;
        *) exec "$python" -E -s "$here/bootstrap.py" "$@" ;;
    esac
done

if command -v apt-get >/dev/null; then
    # Where python3 itself is too old, the release may carry a newer one under its own name.
    name=python3${old:+.11}
    get="sudo apt-get install $name $name-venv"
elif command -v dnf >/dev/null; then get="sudo dnf install python3.12"
elif command -v pacman >/dev/null; then get="sudo pacman -S python"
elif command -v zypper >/dev/null; then get="sudo zypper install python312"
elif command -v brew >/dev/null; then get="brew install python@3.13"
else get=
fi
echo "specchat needs Python 3.11 or newer; found ${old:-none}. To get one: ${get:+$get, or }see python.org/downloads." >&2
exit 1
