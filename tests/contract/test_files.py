"""What a file may be: its size, its name, what it may call and name."""

import ast
import re
import warnings

from tests.contract.source import PACKAGE, ROOT, calls, imports, source_files, tracked_files, tree

MAX_LINES = 400
NEAR_LINES = 300

BANNED_NAMES = re.compile(r"^_?(utils?|common|helpers?|core|misc|base_utils)(\.py)?$")

# name of the call -> files that may use it
ONLY_IN = {
    "print": (),
    "sys.exit": ("cli/main.py", "engine/__main__.py", "machine/torch_probe.py"),
    "exit": (),
    "quit": (),
    "sys.stdout.write": ("output/console.py",),
    "sys.stderr.write": ("output/console.py",),
    "os.system": (),
    "os.popen": (),
    "yaml.load": (),
    "yaml.unsafe_load": (),
    "yaml.full_load": (),
    "eval": (),
    "exec": (),
}

# Paths and hosts of one machine; written in pieces so that this file does not match itself.
MACHINE = re.compile("|".join(["/" + "work/", "/" + "root/", "pypi" + "-more", "/opt/" + "pypi"]))


def name_of(path):
    return path.relative_to(PACKAGE).as_posix()


def test_source_files_stay_small():
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in source_files()}
    near = [f"{name_of(p)}: {n}" for p, n in lines.items() if NEAR_LINES < n <= MAX_LINES]
    if near:
        warnings.warn(f"over {NEAR_LINES} lines, split soon: {', '.join(near)}", stacklevel=1)
    large = [f"{name_of(p)}: {n}" for p, n in lines.items() if n > MAX_LINES]
    assert not large, f"over {MAX_LINES} lines: {', '.join(large)}"


def test_no_drawer_for_everything():
    named = [
        str(path.relative_to(ROOT))
        for path in (*PACKAGE.rglob("*"), *(ROOT / "tests").rglob("*"))
        if BANNED_NAMES.match(path.name)
    ]
    assert not named, f"name the thing it does: {', '.join(named)}"


def test_every_module_says_what_it_is_for():
    silent = [
        name_of(path)
        for path in source_files()
        if tree(path).body and not ast.get_docstring(tree(path))
    ]
    assert not silent, f"no module docstring: {', '.join(silent)}"


def test_printing_exiting_and_code_from_text_only_where_allowed():
    wrong = [
        f"{name_of(path)}:{node.lineno} calls {name}"
        for path in source_files()
        for name, node in calls(path)
        if name in ONLY_IN and name_of(path) not in ONLY_IN[name]
    ]
    assert not wrong, "\n".join(wrong)


def test_no_shell_strings():
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in source_files()
        for _, node in calls(path)
        for keyword in node.keywords
        if keyword.arg == "shell" and not _is(keyword.value, False)
    ]
    assert not wrong, f"argv lists, never a shell string: {', '.join(wrong)}"


def test_no_pickle():
    pickles = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    wrong = [
        str(found)
        for path in source_files()
        for found in imports(path)
        if found.module.split(".")[0] in pickles
        # The error that torch.load raises when it refuses a file, and nothing else of it.
        and "from pickle import UnpicklingError"
        not in path.read_text().splitlines()[found.line - 1]
    ]
    assert not wrong, "\n".join(wrong)


def test_weights_are_loaded_as_weights_only():
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in source_files()
        for name, node in calls(path)
        if name == "torch.load"
        and not any(k.arg == "weights_only" and _is(k.value, True) for k in node.keywords)
    ]
    assert not wrong, f"torch.load without weights_only=True: {', '.join(wrong)}"


def _is(node, value):
    return isinstance(node, ast.Constant) and node.value is value


def test_no_file_names_one_machine():
    wrong = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not wrong, "\n".join(["paths or hosts of one machine:", *wrong])


def test_files_that_texts_name_are_there():
    """Paths below `src/phalanx`, in comments and in the documentation; `file.py:name` is in it."""
    rooms = "|".join(sorted(path.name for path in PACKAGE.iterdir() if path.is_dir()))
    named = re.compile(rf"(?<![\w/.-])((?:{rooms})/[\w/]+\.py)(?::([A-Za-z_][\w.]*))?")
    wrong = []
    for path in tracked_files():
        if path.suffix not in (".py", ".md") or path.is_relative_to(ROOT / "benchmarks"):
            continue
        if path.name == "CHANGELOG.md" or path.is_relative_to(ROOT / "tests"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for name, inside in named.findall(line):
                files = [base / name for base in (PACKAGE, ROOT) if (base / name).is_file()]
                text = files[0].read_text(encoding="utf-8") if files else ""
                last = inside.rpartition(".")[2]
                if not text or (last and not re.search(rf"\b(def|class) {last}\b", text)):
                    wrong.append(f"{path.relative_to(ROOT)}:{number}: {name} {inside}")
    assert not wrong, "\n".join(["files that are not there:", *wrong])


def test_unit_tests_follow_the_source_folder_by_folder():
    unit = ROOT / "tests" / "unit"
    folders = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")}
    lost = sorted(str(folder) for folder in folders if not (PACKAGE / folder).is_dir())
    assert not lost, f"folders of tests/unit that src/phalanx does not have: {', '.join(lost)}"
