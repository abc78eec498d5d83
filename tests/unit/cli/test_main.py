"""The `pdkv` command itself: quick, and clear about what is missing."""

import subprocess
import sys


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def _without(*modules: str) -> str:
    """Code that makes these modules look as if they were not installed."""
    return (
        "import importlib.util as u, sys\n"
        f"gone = {modules!r}\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name in gone else find(name, *a)\n"
        "for name in gone: sys.modules[name] = None\n"
    )


def test_help_imports_neither_an_engine_nor_a_plotter() -> None:
    code = "import sys; from pdkv_connector.cli.main import app\ntry: app(['--help'])\nexcept SystemExit: pass\n"
    heavy = "{'torch', 'vllm', 'transformers', 'matplotlib', 'aiohttp', 'numpy', 'nixl'}"
    done = _run(code + f"print(sorted({heavy} & set(sys.modules)))")
    assert done.stdout.strip().splitlines()[-1] == "[]", done.stderr
    for command in ("demo", "doctor", "verify", "top"):
        assert command in done.stdout


def test_without_typer_it_names_the_extra_to_install() -> None:
    done = _run(_without("typer") + "import pdkv_connector.cli.main")
    assert done.returncode == 1
    assert done.stderr.strip() == "pdkv: missing typer: pip install 'pdkv-connector[cli]'"


def test_without_an_engine_the_demo_names_the_extra_to_install() -> None:
    done = _run(_without("vllm") + "from pdkv_connector.cli.main import app; app(['demo'])")
    assert done.returncode == 1
    assert done.stderr.strip() == "pdkv: this command needs vllm: pip install 'pdkv-connector[vllm]'"


def test_verify_of_nothing_is_one_line_and_exit_1() -> None:
    arguments = ["verify", "--prefill", "http://127.0.0.1:9", "--decode", "http://127.0.0.1:10"]
    done = _run(f"from pdkv_connector.cli.main import app; app({arguments!r})")
    assert done.returncode == 1
    assert "http://127.0.0.1:9 cannot be asked" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
