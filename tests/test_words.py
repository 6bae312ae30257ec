"""Words enforced: citations and rule codes that resolve, docstrings with a subject, names that say what they hold.

Rules are in CONTRIBUTING.md, "How we write". Where older text still breaks one, `LEFT` counts how
often: the count may only go down, and this file is changed with it.
"""

from __future__ import annotations

import ast
import collections
import functools
import io
import pathlib
import re
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parent.parent
SOURCE = ROOT / "src" / "bookies"
SPEC = ROOT / "docs" / "reference" / "spec"
MODULES = sorted(SOURCE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PAGES = sorted((ROOT / "docs").rglob("*.md")) + sorted(ROOT.glob("*.md"))
CHAPTERS = ("client-protocol", "wire-protocol", "storage", "metadata", "operations", "spark", "distributedlog")

# What breaks a rule and is still to be rewritten, by rule. Zero is the aim.
LEFT = {
    "docstrings without a subject": 0,
    "vague words": 6,
    "vague names": 2,
    "long lines of documents": 0,
}
BEGINNINGS = {"Of", "As", "What", "Who", "Whose", "Whom", "Whether"}
VAGUE_WORDS = re.compile(
    r"\b(nobody|whoever|whomever|whatever|somebody|made anew|all the same|so many|for so long|heeds?|heeded|mends?|"
    r"mended|bears? with|borne with|let go|lets go|of itself|by itself|under way|on (its|their) way|made again)\b",
    re.IGNORECASE,
)
VAGUE_NAMES = {"each", "found", "said", "told", "some", "made", "thing", "things"}
LINE_LENGTH_MAX = 100


@functools.cache
def text_of(path: pathlib.Path) -> str:
    return path.read_text()


@functools.cache
def tree_of(path: pathlib.Path) -> ast.Module:
    return ast.parse(text_of(path))


@functools.cache
def sections_of(chapter: str) -> frozenset[str]:
    """Return the numbers of a chapter's headings: "5", "5.7"."""
    return frozenset(re.findall(r"^#+ (\d+(?:\.\d+)*)\.? ", text_of(SPEC / f"{chapter}.md"), re.MULTILINE))


@functools.cache
def defined_codes() -> collections.Counter[str]:
    """Return how often each rule code is defined: it stands in bold where its rule begins."""
    return collections.Counter(
        code
        for page in SPEC.glob("*.md")
        if page.name != "rules.md"
        for code in re.findall(r"\*\*([A-Z]-\d+)\*\*", text_of(page))
    )


def citations_of(text: str) -> list[tuple[str, str]]:
    """Return (chapter, section) of every citation, such as `storage 5.7 and 5.8`."""
    chapters = "|".join(CHAPTERS)
    matches = re.finditer(rf"\b({chapters}) (\d+(?:\.\d+)*(?:(?:, | and |, and | to )\d+(?:\.\d+)*)*)", text)
    return [(match[1], section) for match in matches for section in re.findall(r"\d+(?:\.\d+)*", match[2])]


@functools.cache
def prose_of(path: pathlib.Path) -> list[tokenize.TokenInfo]:
    """Return the comments and strings of a module: code may contain what looks like a citation."""
    tokens = tokenize.generate_tokens(io.StringIO(text_of(path)).readline)
    in_text = getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)  # since Python 3.12 an f-string is several tokens
    return [token for token in tokens if token.type in (tokenize.COMMENT, tokenize.STRING, in_text)]


@functools.cache
def nodes_of(path: pathlib.Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


def source_lines(path: pathlib.Path) -> str:
    """Return the comments and strings of a module, each on a line of its own. Slow: ask first whether code matters."""
    return "\n".join(token.string for token in prose_of(path))


def unwrapped(text: str) -> str:
    return re.sub(r"\s*\n\s*(#\s*)?", " ", text)


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_citations_resolve(folder: str) -> None:
    problems = []
    for path in MODULES if folder == "src" else TESTS:
        if unresolved(unwrapped(text_of(path))):
            problems += [f"{path.relative_to(ROOT)} cites {each}" for each in unresolved(unwrapped(source_lines(path)))]
    assert not problems, "\n".join(problems)


def unresolved(text: str) -> list[str]:
    """Return the citations of sections that do not exist."""
    return [f"{chapter} {section}" for chapter, section in citations_of(text) if section not in sections_of(chapter)]


def test_pains_resolve() -> None:
    numbers = set(re.findall(r"\*\*(\d+)\*\*", text_of(SPEC / "pains.md")))
    problems = [
        f"{path.relative_to(ROOT)} cites pains {number}"
        for path in MODULES
        for match in re.finditer(r"\bpains (?:[A-H] )?(\d+(?:(?:, | and | to )\d+)*)", unwrapped(text_of(path)))
        for number in re.findall(r"\d+", match[1])
        if number not in numbers
    ]
    assert not problems, "\n".join(problems)


def test_no_citation_of_text_that_is_elsewhere() -> None:
    problems = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in (*MODULES, *TESTS, *PAGES)
        for match in re.finditer(
            r"\b(?:style|experience|logs) \d+\.\d+\b|Source: (?:style|experience|logs)\b", text_of(path)
        )
    ]
    assert not problems, "\n".join(problems)


def test_every_rule_code_is_defined_once() -> None:
    twice = [code for code, count in defined_codes().items() if count > 1]
    assert not twice, f"defined more than once: {twice}"
    problems = []
    for path in (*MODULES, *TESTS):
        if undefined(text_of(path)):
            problems += [f"{path.relative_to(ROOT)} names {code}" for code in undefined(source_lines(path))]
    assert not problems, "\n".join(problems)


def undefined(text: str) -> list[str]:
    """Return the codes of rules that are defined nowhere."""
    codes = re.findall(r"(?<![\w-])([BDFILQRX]-\d+)\b", text)
    return [code for code in codes if code not in defined_codes() and code not in NO_CODES]


NO_CODES = {"I-34"}  # A test of the refusal of codes that do not exist.


def problems_of_docstrings() -> list[str]:
    problems = []
    for path in MODULES:
        for node in nodes_of(path):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words = (ast.get_docstring(node, clean=False) or "").split(None, 1)
                if words and words[0].strip(",.:;") in BEGINNINGS:
                    problems.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {' '.join(words)[:60]}")
    return problems


def problems_of_words() -> list[str]:
    problems = []
    for path in MODULES:
        problems.extend(
            f"{path.relative_to(ROOT)}:{token.start[0]}: {match[0]}"
            for token in (prose_of(path) if VAGUE_WORDS.search(text_of(path)) else ())
            for match in VAGUE_WORDS.finditer(token.string)
        )
    for path in PAGES:
        problems.extend(f"{path.relative_to(ROOT)}: {match[0]}" for match in VAGUE_WORDS.finditer(text_of(path)))
    return problems


def problems_of_names() -> list[str]:
    problems = []
    for path in MODULES:
        for node in nodes_of(path):
            is_stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            name = node.id if is_stored else node.arg if isinstance(node, ast.arg) else None
            if name is not None and name.lstrip("_") in VAGUE_NAMES:
                problems.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    return problems


def problems_of_lines() -> list[str]:
    """Tables and code blocks may be wider; so may a line that is one link."""
    problems = []
    for path in PAGES:
        is_code = False
        for number, line in enumerate(text_of(path).split("\n"), 1):
            if line.lstrip().startswith("```"):
                is_code = not is_code
            elif (
                len(line) > LINE_LENGTH_MAX
                and " " in line.strip()
                and not is_code
                and not line.lstrip().startswith("|")
            ):
                problems.append(f"{path.relative_to(ROOT)}:{number}: {len(line)} characters")
    return problems


@pytest.mark.parametrize(
    ("rule", "problems_of"),
    [
        ("docstrings without a subject", problems_of_docstrings),
        ("vague words", problems_of_words),
        ("vague names", problems_of_names),
        ("long lines of documents", problems_of_lines),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_words(rule: str, problems_of: collections.abc.Callable[[], list[str]]) -> None:
    problems = problems_of()
    text = "\n".join(problems)
    assert len(problems) <= LEFT[rule], f"{rule}: {len(problems)}, {LEFT[rule]} are allowed\n{text}"
    assert len(problems) == LEFT[rule], f"{rule}: only {len(problems)} are left. Write that number into LEFT."
