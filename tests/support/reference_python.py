"""For tests that compare with a library from PyPI: run on in the Python that has it, or skip loudly.

  sys.path.insert(0, ".../tests/support"); from reference_python import require; require("gguf", "numpy")

Tried: this Python, $ISOTHERM_PYTHON (set by tools/check), the virtual environment that tools/check makes. No other Python has
the libraries: exit 77, which meson counts as skipped.
"""
import importlib.util
import os
import sys


def candidates():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return [os.environ.get("ISOTHERM_PYTHON"), os.path.join(cache, "isotherm", "venv", "bin", "python3")]


def require(*modules):
    missing = [m for m in modules if importlib.util.find_spec(m) is None]
    if not missing:
        return
    tried = os.environ.get("ISOTHERM_PYTHONS_TRIED", "").split(os.pathsep)
    for python in candidates():
        if python and python not in tried and os.access(python, os.X_OK):
            os.environ["ISOTHERM_PYTHONS_TRIED"] = os.pathsep.join(tried + [python])
            os.execv(python, [python] + sys.argv)
    print(f"SKIPPED: {os.path.basename(sys.argv[0])} needs {', '.join(missing)} from PyPI (tools/check installs what is needed)",
          file=sys.stderr)
    sys.exit(77)
