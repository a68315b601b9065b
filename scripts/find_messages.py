"""Finds every English message of the command line in the source, as a template with holes.

python scripts/find_messages.py            what the catalogues lack, and what nothing says any more
python scripts/find_messages.py --write    put both right: what is lacking is "", to be filled in
python scripts/find_messages.py --write zh.json    the same, with translations from another file

A message is what ends up in a Finding, in the reason of a Decision, in a Cause, or in a call that
prints. From there the texts are followed backwards through names, calls and parameters, so that a
part written elsewhere is found too. Nothing is run: the source is only read.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path

from phalanx.output.language import LANGUAGES, split_outside_code

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "phalanx"
CATALOGUES = {name: PACKAGE / "languages" / f"{name}.json" for name in LANGUAGES if name != "en"}

# What is printed, by the last part of the name that is called.
_PRINTS = {"say", "tell", "table", "working", "_say", "_tell", "status", "translate", "label"}
_FIELDS = {
    "Finding": ("what", "why", "fix"),
    "Cause": ("words", "fix", "script_fix"),
    "Decision": ("reason",),
}
_GRAMMAR = re.compile(r"s|es|y|ies|is|are|was|were|has|have|it|them|they|do|does|an?|its|their|")
_PATTERN = re.compile(
    r"\(\?|\\|\n|\[A-Za-z|^[\w.:{}-]+$|\*\.|^bold |^default not|^# |^import |^cd "
)
_NAMED = re.compile(r"\{[a-z_]*\}")  # of a text that is filled in later
_PLAIN_WORD = re.compile(r"[a-z]{2,}", re.IGNORECASE)
_CODE = re.compile(
    r"`[^`]*`|\{\d+~?\}|--?[a-z][\w-]*(?:[ =][A-Z]+\b)?|\b[\w.]+ ?= ?\S*|\b\w+(?:[._/]\w+)+"
    r"|\b[A-Z][a-z]+[A-Z]\w*|\b[A-Z_]{2,}\b"
)
_COMMANDS = re.compile(
    r"(phalanx|pip|export|python3?|sudo|ssh|df|ls|nvidia-smi|less \+G|tail -f|scontrol|"
    r"sinfo|dmesg|ulimit|openssl|mv|rm|unset|class|recipe:|epochs:|key:|\{\{|\"|curl|apt|load\() ?"
)
# One word and values that could stand in a text of somebody else, or that say nothing themselves.
_TOO_WEAK = {
    "the {0}", "{0} is {1}", "{0} and {1}", "{0} {1} and {2} {3}", "{0}, weight", "{0} for {1}",
    "with `{0}`", "only `{0}`", "no `{0}`", "of [{0}]", "{0} answers", "running {0}",
    "rank{0~} {1}", "matching {0}",
}  # fmt: skip
_LIKE_CODE = {"samples/s", "steps/epoch", "no CUDA", "rates: {0}"}  # and yet words
_MOST_WAYS = 6
# Where a text may take ways that are not followed, such as fields and loops: all that stands there.
_LOOSE = (
    "planner/", "machine/", "prepare/", "supervise/", "scripts/", "places/", "verbs/", "output/",
    "cli/", "diagnose/", "job/", "exporter/", "run/launching.py",
)  # fmt: skip
_WORDS_OUT = ("cli/", "output/")
_UNSAID = ("diagnose/causes/", "diagnose/logs.py", "machine/catalogue", "job/editor.py")
_NOT_SAID = {
    "Option", "Argument", "Typer", "Field", "compile", "match", "search", "fullmatch", "sub",
    "findall", "finditer", "get", "split", "replace", "startswith", "endswith", "removesuffix",
    "partition", "rpartition", "strptime", "strftime", "open", "glob", "rglob", "run", "Popen",
    "Signature", "print", "Path", "removeprefix", "rsplit",
}  # fmt: skip
_TOLD_BY_SENTENCE = ("verbs/terms.py", "job/schema.py")


@dataclass(frozen=True)
class Hole:
    """A value that is only known when the program runs."""

    node: ast.expr | None
    scope: Scope = field(repr=False, hash=False, compare=False)


Text = tuple["str | Hole", ...]


@dataclass(frozen=True, eq=False)
class Module:
    """A file of the package, and what its names stand for."""

    name: str
    tree: ast.Module

    def functions(self) -> Iterator[ast.FunctionDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef):
                yield node


@dataclass(frozen=True, eq=False)
class Scope:
    """Where an expression stands: its module and the functions around it, the innermost first."""

    module: Module
    functions: tuple[ast.FunctionDef, ...] = ()


class Source:
    """The package as texts can be followed through it."""

    def __init__(self, package: Path = PACKAGE) -> None:
        self.modules = [
            Module(path.relative_to(package).as_posix(), ast.parse(path.read_text("utf-8")))
            for path in sorted(package.rglob("*.py"))
        ]
        self._functions: dict[str, list[tuple[Module, ast.FunctionDef]]] = {}
        self._constants: dict[str, list[tuple[Module, ast.expr]]] = {}
        self._calls: dict[str, list[tuple[Scope, ast.Call]]] = {}
        for module in self.modules:
            for function in module.functions():
                self._functions.setdefault(function.name, []).append((module, function))
            for node in module.tree.body:
                for name, value in _assigned([node]):
                    self._constants.setdefault(name, []).append((module, value))
            for scope, node in _walk(Scope(module), module.tree):
                if isinstance(node, ast.Call):
                    self._calls.setdefault(_called(node), []).append((scope, node))
        self._busy: set[tuple[int, str]] = set()

    def messages(self) -> set[str]:
        """Every message: an English template, `{0}` for a value, `{1~}` for an ending such as the
        s of a plural."""
        found: set[str] = set()
        done: set[int] = set()
        todo: list[tuple[Hole, bool]] = [(Hole(node, scope), True) for scope, node in self._roots()]
        while todo:
            hole, is_root = todo.pop()
            if hole.node is None or id(hole.node) in done:
                continue
            done.add(id(hole.node))
            for text in self.texts(hole.node, hole.scope):
                todo += [(part, False) for part in text if isinstance(part, Hole)]
                template = self._template(text)
                found |= {t for t in self._shown(template, hole) if is_prose(t, is_root=is_root)}
            todo += [(Hole(n, hole.scope), is_root) for n in _elements(hole.node)]
        return found | self._titles() | set(self._loose()) | _LIKE_CODE

    def _loose(self) -> Iterator[str]:
        for module in self.modules:
            is_said = module.name.startswith(_LOOSE) and not module.name.startswith(_UNSAID)
            if is_said and module.name not in _TOLD_BY_SENTENCE:
                for node in _said(module.tree):
                    for text in self.texts(node, Scope(module)):
                        template = self._template(text)
                        if is_prose(template) and not _PATTERN.search(template):
                            yield template
            has_labels = module.name.startswith(_WORDS_OUT) and not module.name.startswith(
                "cli/options/"
            )
            if has_labels and module.name not in _TOLD_BY_SENTENCE:
                yield from _labels(module.tree)

    def _shown(self, template: str, hole: Hole) -> Iterator[str]:
        """A template as it is printed: causes leave parts out, long texts are told by sentence."""
        module = hole.scope.module.name
        if module.startswith("diagnose/causes/"):
            for piece in split_outside_code(template, "; "):
                yield _numbered(piece)
                yield _numbered(_without_values(piece))
        elif module in _TOLD_BY_SENTENCE:
            yield from sentences(template)
        else:
            yield template

    def _titles(self) -> set[str]:
        """What the table of a plan has on the left: the names of its choices."""
        plan = next(m for m in self.modules if m.name == "planner/schema/plan.py")
        return {
            node.target.id.removesuffix("_bytes").replace("_", " ")
            for node in ast.walk(plan.tree)
            if isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and ast.unparse(node.annotation).startswith("Decision[")
        }

    def _roots(self) -> Iterator[tuple[Scope, ast.expr]]:
        for module in self.modules:
            if module.name in _TOLD_BY_SENTENCE:
                yield from ((Scope(module), node) for node in _told(module))
        for name, fields in _FIELDS.items():
            for scope, call in self._calls.get(name, []):
                given = {k.arg: k.value for k in call.keywords}
                if name == "Decision" and len(call.args) > 1:
                    yield scope, call.args[1]
                yield from ((scope, given[name]) for name in fields if name in given)
        for name in _PRINTS:
            for scope, call in self._calls.get(name, []):
                if scope.module.name.startswith(_WORDS_OUT):
                    kept = [k.value for k in call.keywords if k.arg not in ("style", "right")]
                    yield from ((scope, node) for node in [*call.args, *kept])

    # Texts

    def texts(self, node: ast.expr, scope: Scope) -> list[Text]:
        """What an expression may be as text; a Hole alone where that is not known."""
        match node:
            case ast.Constant(value=str(text)):
                return [_split_named(text, scope)]
            case ast.JoinedStr(values=parts):
                text: list[str | Hole] = []
                for part in parts:
                    if isinstance(part, ast.FormattedValue):
                        text.append(Hole(part.value, scope))
                    elif isinstance(part, ast.Constant):
                        text += _split_named(str(part.value), scope)
                return [tuple(text)]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                ways = [self.texts(left, scope), self.texts(right, scope)]
                if len(ways[0]) * len(ways[1]) > _MOST_WAYS:
                    sides = (left, right)
                    ways = [
                        w if len(w) == 1 else [(Hole(n, scope),)]
                        for w, n in zip(ways, sides, strict=True)
                    ]
                return [(*a, *b) for a, b in product(*ways)]
            case ast.IfExp(body=body, orelse=orelse):
                return [*self.texts(body, scope), *self.texts(orelse, scope)]
            case ast.BoolOp(values=values):
                return [text for value in values for text in self.texts(value, scope)]
            case ast.NamedExpr(value=value):
                return self.texts(value, scope)
            case ast.Name(id=name):
                return self._followed(node, name, scope, self._named(name, scope))
            case ast.Call():
                name = _called(node)
                if isinstance(node.func, ast.Attribute) and name in ("format", "strip", "rstrip"):
                    return self.texts(node.func.value, scope)
                return self._followed(node, name, scope, self._returned(node, scope))
            case ast.Subscript(value=ast.Name(id=name)):
                values = [
                    (s, v)
                    for s, d in self._named(name, scope)
                    if isinstance(d, ast.Dict)
                    for v in d.values
                ]
                return self._followed(node, f"{name}[]", scope, values)
        return [(Hole(node, scope),)]

    def _followed(
        self, node: ast.expr, name: str, scope: Scope, values: Iterable[tuple[Scope, ast.expr]]
    ) -> list[Text]:
        key = (id(node), name)
        if key in self._busy:
            return []
        self._busy.add(key)
        found = [text for s, value in values for text in self.texts(value, s)]
        self._busy.discard(key)
        plain = [text for text in found if not (len(text) == 1 and isinstance(text[0], Hole))]
        held = [text[0] for text in found if len(text) == 1 and isinstance(text[0], Hole)]
        unknown = [h for h in held if h.node is not None and _elements(h.node)]
        return [*dict.fromkeys(plain), *((h,) for h in unknown)] or [(Hole(None, scope),)]

    def _named(self, name: str, scope: Scope) -> list[tuple[Scope, ast.expr]]:
        for depth, function in enumerate(scope.functions):
            around = Scope(scope.module, scope.functions[depth:])
            values = [(around, v) for n, v in _assigned_in(function) if n == name]
            values += list(self._passed(name, function, scope.module))
            if values:
                return values
            if any(a.arg == name for a in (*function.args.args, *function.args.kwonlyargs)):
                return []
        return [(Scope(m), v) for m, v in self._constants.get(name, []) if m is scope.module] or [
            (Scope(m), v) for m, v in self._constants.get(name, [])
        ]

    def _passed(
        self, name: str, function: ast.FunctionDef, module: Module
    ) -> Iterator[tuple[Scope, ast.expr]]:
        """What the callers of a function pass as one of its parameters."""
        arguments = [a.arg for a in function.args.args]
        everywhere = [a.arg for a in (*function.args.args, *function.args.kwonlyargs)]
        if name not in everywhere:
            return
        defaults = dict(zip(reversed(arguments), reversed(function.args.defaults), strict=False))
        if name in defaults:
            yield Scope(module), defaults[name]
        is_shared = len(self._functions.get(function.name, [])) > 1
        for scope, call in self._calls.get(function.name, []):
            if is_shared and scope.module is not module:
                continue
            offset = 1 if arguments[:1] in (["self"], ["cls"]) else 0
            if name in arguments and arguments.index(name) - offset < len(call.args):
                yield scope, call.args[arguments.index(name) - offset]
            yield from ((scope, k.value) for k in call.keywords if k.arg == name)

    def _returned(self, call: ast.Call, scope: Scope) -> Iterator[tuple[Scope, ast.expr]]:
        known = self._functions.get(_called(call), [])
        own = [pair for pair in known if pair[0] is scope.module]
        for module, function in own or known[:2]:
            inner = Scope(module, (function,))
            for _, node in _walk(inner, function):
                if isinstance(node, (ast.Return, ast.Yield)) and node.value is not None:
                    yield inner, node.value

    # Templates

    def _template(self, text: Text) -> str:
        made, count = "", 0
        for part in text:
            if isinstance(part, str):
                made += part.replace("{", "{{").replace("}", "}}")
                continue
            made += f"{{{count}{'~' if self._is_grammar(part) else ''}}}"
            count += 1
        return made

    def _is_grammar(self, hole: Hole) -> bool:
        if hole.node is None or isinstance(hole.node, ast.Constant):
            return False
        words = [_only_text(text) for text in self.texts(hole.node, hole.scope)]
        return len(words) > 1 and all(w is not None and _GRAMMAR.fullmatch(w) for w in words)


def sentences(text: str) -> list[str]:
    """The sentences of a text without their full stops."""
    return [part.removesuffix(".") for part in re.split(r"(?<=[.])\s+", " ".join(text.split()))]


def _told(module: Module) -> Iterator[ast.expr]:
    """Explanations of words, and the help under the fields of the job."""
    if module.name == "verbs/terms.py":
        for name, value in _assigned(module.tree.body):
            if name == "TERMS":
                yield value
        return
    for kind in ast.walk(module.tree):
        if isinstance(kind, ast.ClassDef):
            for node, below in zip(kind.body, kind.body[1:], strict=False):
                if isinstance(node, ast.AnnAssign) and isinstance(below, ast.Expr):
                    yield below.value


def _without_values(piece: str) -> str:
    """What `fill_words` of diagnose/words.py leaves of a part whose values are not known."""
    piece = re.sub(r" \([^()]*\{\d+\}[^()]*\)", "", piece)
    before, found, _ = piece.partition("{")
    if not found:
        return piece
    return before.rpartition(": ")[0] or before.rpartition(", ")[0]


def _numbered(template: str) -> str:
    """The same with its holes counted from 0."""
    count = iter(range(100))
    return re.sub(r"\{\d+(~?)\}", lambda hole: f"{{{next(count)}{hole[1]}}}", template)


def is_prose(template: str, *, is_root: bool = False) -> bool:
    """Whether a text holds words to translate: not only code, commands, values and names."""
    said = template.strip()
    if _COMMANDS.match(said) and not re.search(r"[;,(] ?[a-z]+ ([a-z]+|`)", said):
        return False
    words = _PLAIN_WORD.findall(_CODE.sub(" ", said))
    if len(words) == 1 and "{" in said and " " in said and said not in _TOO_WEAK:
        return True
    if len(words) == 1 and " " not in said.strip("{}0123456789~:,;() "):
        return is_root
    return len(words) > 1 or (bool(words) and is_root)


def _only_text(text: Text) -> str | None:
    return "".join(map(str, text)) if all(isinstance(part, str) for part in text) else None


def _split_named(text: str, scope: Scope) -> Text:
    """`{gpu}` of a text that is filled in later is a hole like any other."""
    if not _NAMED.search(text):
        return (text,)
    literals = _NAMED.split(text)
    parts: list[str | Hole] = [literals[0]]
    for literal in literals[1:]:
        parts += [Hole(None, scope), literal]
    return tuple(part for part in parts if part != "")


def _elements(node: ast.expr) -> list[ast.expr]:
    """The expressions inside lists, generators, tables and joined texts."""
    match node:
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return list(items)
        case ast.Dict(values=values):
            return list(values)
        case ast.GeneratorExp(elt=elt) | ast.ListComp(elt=elt):
            return [elt]
        case ast.Starred(value=value) | ast.Yield(value=ast.expr() as value):
            return [value]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [left, right]
        case ast.IfExp(body=body, orelse=orelse):
            return [body, orelse]
        case ast.Call(func=ast.Attribute(attr="join"), args=[inner]):
            return [inner]
        case ast.Call(args=args) if _called(node) in ("list", "tuple", "sorted", "dict", "map"):
            return list(args)
    return []


def _said(node: ast.AST) -> Iterator[ast.expr]:
    """The texts below a node that may be printed: no docstring, no help, no pattern, no exception
    that only we would see."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Constant(value=str()) | ast.JoinedStr():
                yield child
            case ast.Expr(value=ast.Constant()) | ast.Raise() | ast.Assert() | ast.Compare():
                continue
            case ast.Call() if _called(child) in _NOT_SAID or _called(child).endswith("Error"):
                if not isinstance(child.func, ast.Attribute):
                    continue
                yield from _said(child.func)
            case _:
                yield from _said(child)


def _labels(node: ast.AST) -> Iterator[str]:
    """The names of rows: a word that a tuple begins with."""
    for child in ast.walk(node):
        match child:
            case ast.Tuple(elts=[ast.Constant(value=str(word)), _, *_]):
                if re.fullmatch(r"[a-z]{3,}( [a-z]+)*", word):
                    yield word


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Name):
        return call.func.id
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _assigned(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    for one, value in zip(target.elts, node.value.elts, strict=False):
                        if isinstance(one, ast.Name):
                            yield one.id, value
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            if isinstance(node.target, ast.Name):
                yield node.target.id, node.value
        elif isinstance(node, ast.NamedExpr):
            yield node.target.id, node.value


@cache
def _assigned_in(function: ast.FunctionDef) -> list[tuple[str, ast.expr]]:
    return list(_assigned(ast.walk(function)))


def _walk(scope: Scope, node: ast.AST) -> Iterator[tuple[Scope, ast.AST]]:
    """Every node below with the functions that it stands in."""
    for child in ast.iter_child_nodes(node):
        yield scope, child
        inner = scope
        if isinstance(child, ast.FunctionDef):
            inner = Scope(scope.module, (child, *scope.functions))
        yield from _walk(inner, child)


def main(argv: list[str]) -> int:
    messages = Source().messages()
    is_bad = False
    for language, path in CATALOGUES.items():
        entries: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        lacking = sorted(text for text in messages if not entries.get(text))
        unsaid = sorted(entries.keys() - messages)
        for text in lacking:
            sys.stdout.write(f"{language} lacks: {text}\n")
        for text in unsaid:
            sys.stdout.write(f"{language} has what nothing says: {text}\n")
        is_bad = is_bad or bool(lacking or unsaid)
        if "--write" in argv:
            others = [
                json.loads(Path(name).read_text("utf-8")) for name in argv if name[:2] != "--"
            ]
            known = {text: said for other in others for text, said in other.items()} | entries
            kept = {text: known.get(text, "") for text in sorted(messages)}
            path.write_text(json.dumps(kept, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
