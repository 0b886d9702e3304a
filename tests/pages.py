"""Pages of Markdown taken apart: their blocks of code, commands, links, and what they name."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import unicodedata

from fedpersonal.suite.commands.subcommands import DATA_COMMANDS

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
OURS = ("experiments", "examples", "benchmarks", "build_tools")
# Programs of others, whose arguments are not looked at.
FOREIGN = {"cd", "docker", "done", "export", "for", "git", "pip", "source", "ssh", "umask"}
FOREIGN |= {".venv/bin/ray"}
# Flags of others' programs that pages speak of.
FOREIGN_FLAGS = {
    "address",
    "constraint",
    "exhaustive",
    "flags",
    "head",
    "logdir",
    "no-deps",
    "num-cpus",
}
FOREIGN_FLAGS |= {"platform", "temp-dir", "upgrade"}

# Flags of a binary are defined when it is imported or begins, hence a fork for each.
_PARSE = """
import importlib, json, os, sys
from absl import flags
from fedpersonal.suite.commands import option_flags
from fedpersonal.suite.commands.command import find_main

found = []
for module, *arguments in json.load(sys.stdin):
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            package, _, name = module.partition(".")
            is_binary = package == "experiments"
            module = None if is_binary else importlib.import_module(module)
            main = find_main(name) if is_binary else getattr(module, "main", None)
            arguments = option_flags.expand_flagfiles([name, *arguments])
            if hasattr(main, "define"):
                main.define(arguments)
            flags.FLAGS(arguments)
            fault = ""
        except BaseException as error:
            fault = str(error) or repr(error)
        os.write(write, fault.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found.append(pipe.read())
json.dump(found, sys.stdout)
"""


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of code, and what comes first where it is run."""

    line: int
    language: str
    text: str
    first: str = ""


def read(text):
    """Returns the blocks of a page, and its lines without them."""
    blocks, prose, first = [], [], ""
    lines = iter(enumerate(text.splitlines(), 1))
    is_list = False
    for number, line in lines:
        if line.startswith("<!-- first"):
            first = "\n".join(_until(lines, "-->"))
        elif line.lstrip().startswith("```"):
            language = line.strip().strip("`")
            text = "\n".join(_until(lines, "```"))
            blocks.append(Block(number, language, text, first))
            first = ""
        elif line.startswith("    ") and not is_list:
            blocks.append(Block(number, "sh", line.strip()))
        else:
            is_list = bool(re.match(r"[-*\d]", line)) or (is_list and line[:1] in ("", " "))
            prose.append(line)
    return blocks, "\n".join(prose)


def _until(lines, end):
    for _, line in lines:
        if line.strip() == end:
            return
        yield line


def commands(text):
    """Returns the commands of a shell block, each as its words."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.strip().strip("()"), comments=True)
        command = []
        for word in [*words, ";"]:
            if word.endswith(";") or word in ("do", "&&", "|"):
                command += [word[:-1]] if word[:-1] and word.endswith(";") else []
                found.append(command)
                command = []
            else:
                command.append(word)
    named = ([w for w in c if not re.match(r"[A-Z_]+=", w) or c[0] == "make"] for c in found)
    return [command for command in named if command]


class Makefile:
    """What `make` can be asked for."""

    def __init__(self):
        self.text = (ROOT / "Makefile").read_text(encoding="utf-8")
        self.recipes = {
            m[1]: m[2] for m in re.finditer(r"^(\w+):.*\n((?:\t.*\n)*)", self.text, re.MULTILINE)
        }

    def faults(self, words):
        """Yields what is wrong with a command, and the flags that it hands on to a module."""
        for word in words:
            name, is_variable, value = word.partition("=")
            if not is_variable and name not in self.recipes:
                yield f"make has no target {name}", None
            elif is_variable and not re.search(rf"\$\({name}\)", self.text):
                yield f"make knows no {name}", None
            elif name == "FLAGS":
                modules = re.findall(r"-m (experiments\.\w+)", self.recipes.get(words[0], ""))
                defaults = re.findall(r"--target=\w+", self.recipes.get(words[0], ""))
                if modules:
                    yield None, [modules[0], *defaults, *shlex.split(value)]


MAKE = Makefile()


def check(words):
    """Yields what is wrong with a command, and (None, flags) for each module that reads flags."""
    program, *rest = words
    if program == "make":
        yield from MAKE.faults(rest)
    elif program in ("python", ".venv/bin/python") and rest[0] == "-m":
        yield from check_module(rest[1], rest[2:])
    elif program in ("python", ".venv/bin/python"):
        if not (ROOT / rest[0]).is_file():
            yield f"there is no {rest[0]}", None
    elif program == "fedpersonal":
        name = DATA_COMMANDS[rest[0]].task if rest[0] in DATA_COMMANDS else rest[0]
        yield from check_module(f"experiments.{name}", rest[1:])
    elif program == "bazel":
        target = re.fullmatch(r"//(\w+):([\w/]+)", rest[1])
        if target is None or not (ROOT / target[1] / f"{target[2]}.py").is_file():
            yield f"there is no target {rest[1]}", None
        elif rest[2:]:
            yield from check_module(f"{target[1]}.{target[2]}", rest[3:])
    elif program not in FOREIGN:
        yield f"what is {program}? No program of ours, and not in FOREIGN", None


def check_module(module, arguments):
    """Yields what is wrong with `python -m`."""
    path = ROOT / (module.replace(".", "/") + ".py")
    if module.split(".")[0] in OURS and not path.is_file():
        yield f"there is no {module}", None
    elif any(a.startswith("--") for a in arguments) and path.is_file():
        yield None, [module, *(a for a in arguments if a not in ("--help", "--helpfull"))]


def parse_flags(given):
    """Returns the fault of each [module, argument...], empty where there is none."""
    finished = subprocess.run(
        [sys.executable, "-c", _PARSE],
        cwd=ROOT,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(finished.stdout)


def faults_of_commands(pages):
    """Returns what is wrong with the commands of pages' shell blocks."""
    faults, given = [], []
    for page, (blocks, _) in pages.items():
        for block in blocks:
            for words in commands(block.text) if block.language == "sh" else ():
                place = f"{page}:{block.line}"
                for fault, flags in check(words):
                    faults += [f"{place}: {fault}"] if fault else []
                    given += [(place, flags)] if flags else []
    told = parse_flags([flags for _, flags in given])
    return faults + [f"{place}: {told}" for (place, _), told in zip(given, told) if told]


def slug(heading):
    """Returns the anchor of a heading, as the site and GitHub have it."""
    heading = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).replace("`", "")
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def anchors(text):
    """Returns the anchors of a page, those of the names whose docstrings it has, too."""
    prose = read(text)[1]
    names = re.findall(r"^::: (\S+)", prose, re.MULTILINE)
    return {*map(slug, re.findall(r"^#+ (.*)$", prose, re.MULTILINE)), *names}


def faults_of_links(page, prose):
    """Yields the links of a page that lead nowhere."""
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose):
        if re.match(r"https?://|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        path = pathlib.Path(os.path.normpath(page.parent / name)) if name else page
        if not path.exists():
            yield f"{page}: {target}: there is no such file"
        elif DOCS in page.parents and DOCS not in path.parents:
            yield f"{page}: {target}: it is outside of docs/, and not in the site"
        elif anchor and anchor not in anchors(path.read_text(encoding="utf-8")):
            yield f"{page}: {target}: it has no such heading"


def faults_of_names(prose, known_flags):
    """Yields what prose calls by a name that does not exist: targets, modules, flags, files."""
    for code in re.findall(r"`([^`]+)`", prose):
        words = code.split()
        if words[0] == "make" and words[1:] and words[1] not in (*MAKE.recipes, "VARIABLE=value"):
            yield f"`{code}`: make has no target {words[1]}"
        for module in re.findall(rf"(?:python|-m) ((?:{'|'.join(OURS)})\.\S+)", code):
            if not (ROOT / (module.replace(".", "/") + ".py")).is_file():
                yield f"`{code}`: there is no {module}"
        for flag in re.findall(r"(?<![\w-])--([a-z][\w-]*)", code):
            name = flag[2:] if flag.startswith("no") and flag not in known_flags else flag
            if name not in known_flags and not flag.endswith("_"):
                yield f"`{code}`: no program has --{flag}"
