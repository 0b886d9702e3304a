"""Writes docs/methods/, a page for each file of methods, from the declarations in these files.

It also writes the types of methods' functions, `fedpersonal/methods/signatures.pyi`.

python -m build_tools.methods_pages
"""

from __future__ import annotations

import importlib
import inspect
import pathlib
import pkgutil
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence

import fedpersonal as fp
import fedpersonal.methods
from build_tools.options_page import options_table
from fedpersonal.files import atomic_write
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.method import ClientOptions, Layers, Method, methods_in
from fedpersonal.methods.phases import BlendPhase, ChoicePhase, NeighboursPhase, Phase, RidgePhase
from fedpersonal.options import Options
from fedpersonal.suite.tasks.find import all_tasks
from fedpersonal.suite.tasks.standalone import EPOCHS
from fedpersonal.suite.tasks.utterances import methods as language_methods

DOCS = pathlib.Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "methods"
STUB = pathlib.Path(fedpersonal.methods.__path__[0]) / "signatures.pyi"
_STUB = """\"\"\"The types of methods' functions. Made by python -m build_tools.methods_pages.\"\"\"

from collections.abc import Mapping, Sequence
from typing import Literal

from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.optimizers import AnyOptimizer
"""
_MADE = "<!-- Made by python -m build_tools.methods_pages, from {}. -->"
_PARTS = ("embedding", "head", "body", "table", "per_client_items")
_LAYERS = Layers(**{part: (part,) for part in _PARTS}, everything=_PARTS[:4])
_WORDS = {
    "global": "the global variables",
    "local": "the local variables",
    "all": "all variables",
    "personal": "the personal copy",
    "default_local": "the embedding, or else the head",
    **{part: f"the {part}" for part in _PARTS},
    "table": "the table of users",
    "per_client_items": "a table of items",
}
_STATES = {"personal": "the client's state", "server": "the server's state"}
_DATA = {"all": "all data", "support": "the support set", "query": "the query set"}
_INDEX = f"""# Methods
{_MADE.format("fedpersonal/methods")}

`--method` takes these names in every task whose model has the layers that a method requires. Each
page has the paper of a method, the steps of a client in a round, its options, and our departures
from the paper. Your own method is [one file](../tutorials/own_method.md), and then has its page
here, too.

| name | in tables | local or personal values of a client | tasks |
| --- | --- | --- | --- |
"""
_EVERY = """
## Options of every method

Defaults are those of the method; a [task](../reference/options.md) may have others. A method that
only one task offers has the defaults of that task.

"""


def pages() -> dict[str, str]:
    """Returns the text of each page by its file's name."""
    texts = {f"{name}.md": _page(name, module) for name, module in _modules().items()}
    rows = (row for name, module in _modules().items() for row in _rows(name, module))
    index = [_INDEX, *rows, _EVERY]
    index += [line + "\n" for line in options_table(ClientOptions.declarations())]
    return {"index.md": "".join(index), **texts}


def signatures() -> str:
    """Returns the stub of the functions that build algorithms in programs."""
    lines = [_STUB]
    for name in (name for name in sorted(fp.__all__) if name in _modules()):
        lines.append(f"\ndef {name}(\n    *,\n")
        for p in inspect.signature(getattr(fp, name)).parameters.values():
            default = "" if p.default is p.empty else f" = {p.default!r}".replace("'", '"')
            lines.append(f"    {p.name}: {p.annotation}{default},\n".replace("'", '"'))
        text = (inspect.getdoc(getattr(fp, name)) or "").partition("\n    **options")[0]
        text = textwrap.indent(text, "    ").lstrip()
        lines.append(f') -> Algorithm:\n    """{text}\n    """\n')
    return "".join(lines)


def write() -> None:
    """Writes the pages, and removes pages of methods that no longer exist."""
    with atomic_write(STUB) as file:
        file.write(signatures())
    texts = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        with atomic_write(FOLDER / name) as file:
            file.write(text)


def _modules() -> Mapping[str, types.ModuleType]:
    """Returns the files of methods by name; FedPerC's methods are defined next to their models."""
    names = [module.name for module in pkgutil.iter_modules(fedpersonal.methods.__path__)]
    files = {name: importlib.import_module(f"fedpersonal.methods.{name}") for name in names}
    return {n: file for n, file in files.items() if n == "fedperc" or methods_in(file)}


def _methods(name: str, module: types.ModuleType) -> Sequence[type[Method]]:
    return language_methods.METHODS if name == "fedperc" else methods_in(module)


def _rows(name: str, module: types.ModuleType) -> Iterator[str]:
    for method in _methods(name, module):
        cells = f"[`{method.name}`]({name}.md#{method.name})", method.title, _local_part(method)
        yield f"| {' | '.join(cells)} | {_tasks(method)} |\n"


def _page(name: str, module: types.ModuleType) -> str:
    methods, paragraphs = _methods(name, module), (inspect.getdoc(module) or "").split("\n\n")
    departures = [p for p in paragraphs if p.startswith("Departures: ")]
    made = _MADE.format(module.__name__.replace(".", "/") + ".py")
    lines = [f"# {_title(methods)}\n{made}"]
    lines += [p for p in paragraphs if p not in departures]
    maker = getattr(fp, name) if name in dir(fp) else None
    if maker is not None:
        lines.append(
            f"In a program: [`fp.{name}`](../reference/api/methods.md#fedpersonal.{name})"
            f"`{_signature(maker)}`."
        )
    if name == "fedperc":
        lines.append(inspect.getdoc(language_methods) or "")
    lines.append("## Departures from the paper")
    text = departures[0].partition(": ")[2] if departures else "None that we know of."
    lines.append(text[:1].upper() + text[1:])
    lines.append("## Figures")
    lines.append(_figures(methods))
    seen: dict[type[Options], str] = {}
    for method in methods:
        lines += [*_section(method), *_options(method, seen)]
    return "\n\n".join(lines) + "\n"


def _signature(maker: Callable[..., Algorithm]) -> str:
    """Returns the signature of a function of `fp`, without annotations."""
    parameters = inspect.signature(maker).parameters.values()
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters]))


def _title(methods: Sequence[type[Method]]) -> str:
    """Returns the title of a page: one method, or two that are no variants of each other."""
    first, *others = (method.title for method in methods)
    is_pair = len(others) == 1 and not others[0].startswith(first)
    return f"{first} and {others[0]}" if is_pair else first


def _section(method: type[Method]) -> Iterator[str]:
    yield f"## {method.name}"
    facts = {
        "In tables": method.title,
        "Tasks": _tasks(method),
        "Local or personal values": _local_part(method),
        "Before a client predicts, it": _adaptation(method),
    }
    if method.trains:
        server = method.server_optimizer
        rate = method.server_learning_rate
        at_rate = f" at a rate of {rate:g}" if rate else ""
        facts["Server optimizer, unless named"] = f"`{server}`{at_rate}" if server else "the task's"
    yield "\n".join(
        f"- {name}{'' if name.endswith(' it') else ':'} {text}" for name, text in facts.items()
    )
    options = _options_of(method)()
    algorithm = method.build(options, _LAYERS)
    if not method.trains:
        yield "There are no rounds."
    elif method.is_federated:
        steps = getattr(options, "local_steps", 0)
        samples = f"samples {steps} batches, which are its data of the round, and " if steps else ""
        yield f"In a round, by default, a client {samples}updates:"
        yield "\n".join(f"{i}. {_phase(p)}" for i, p in enumerate(algorithm.phases, 1))
        if algorithm.assignments:
            states = " and ".join(_STATES[one.of] for one in algorithm.assignments)
            yield f"Then it computes {states} again."
    else:
        yield "One server trains on the data of all clients: " + _phase(algorithm.phases[0]) + "."


def _options(method: type[Method], seen: dict[type[Options], str]) -> Iterator[str]:
    """Yields the options of a method besides the common ones, once for methods with the same."""
    if method.options in seen:
        yield f"Its options are those of [`{seen[method.options]}`](#{seen[method.options]})."
        return
    seen[method.options] = method.name
    common = ClientOptions.declarations()
    declared = _options_of(method).declarations()
    extra = {name: option for name, option in declared.items() if name not in common}
    all_have = "[those of every method](index.md#options-of-every-method)"
    yield f"Its options, besides {all_have}:" if extra else f"Its options are {all_have}."
    if extra:
        yield "\n".join(options_table(extra))


def _options_of(method: type[Method]) -> type[Options]:
    """Returns a method's options, with the defaults of its task if only one task has it."""
    tasks = [task for task in all_tasks().values() if method in task.methods.values()]
    if len(tasks) != 1:
        return method.options
    declared = method.options.declarations()
    defaults = {name: value for name, value in tasks[0].defaults.items() if name in declared}
    return type(method.options.__name__, (method.options,), {}, defaults=defaults)


def _phase(phase: Phase) -> str:
    data = _DATA.get(phase.data, f"the part `{phase.data}`")
    if isinstance(phase, RidgePhase):
        return f"{_variables(phase.variables)}, to the exact solution on {data}"
    if isinstance(phase, BlendPhase):
        return (
            "the share by which each weight of the personal copy moves to the server's value, in "
            f"{phase.epochs} {'pass' if phase.epochs == 1 else 'passes'} over {data}"
        )
    if isinstance(phase, ChoicePhase):
        if phase.mixes:
            likelihood = f"the likelihood of the labels of {data} by each"
            return f"the weights of {phase.clusters} models, by {likelihood}"
        return f"the choice of one of {phase.clusters} models, by the least loss on {data}"
    if isinstance(phase, NeighboursPhase):
        return (
            f"stores {data}, and predicts also by the {phase.neighbours} nearest examples, with a "
            f"weight of {phase.weight:g}"
        )
    passes = "pass" if phase.epochs == 1 else "passes"
    words = f"{_variables(phase.variables)}, in {phase.epochs} {passes} over {data}"
    if phase.max_steps is not None:
        words += f", at most {phase.max_steps} {'step' if phase.max_steps == 1 else 'steps'}"
    if phase.proximal:
        words += f"; with a proximal term to the server's values, of weight {phase.proximal:g}"
    for term, factor in phase.corrections.items():
        sign = "added to" if factor > 0 else "subtracted from"
        words += f"; {_STATES[term]} is {sign} each gradient"
    if phase.ahead:
        steps = f"{phase.ahead.steps} {'step' if phase.ahead.steps == 1 else 'steps'}"
        words += f"; each step takes its gradient after {steps} of a copy"
    return words


def _variables(variables: str | tuple[str, ...]) -> str:
    if isinstance(variables, str):
        return _WORDS[variables]
    return "the layers " + ", ".join(f"`{name}`" for name in variables)


def _local_part(method: type[Method]) -> str:
    """Returns the local variables, or the personal copies or states, of a method's clients."""
    algorithm: Algorithm = method.build(_options_of(method)(), _LAYERS)
    layers = method.local_layers(_options_of(method)(), _LAYERS)
    if not method.trains:
        return "the whole model; nothing is sent"
    if algorithm.personal:
        if algorithm.personal.role == "state":
            return f"a state in the shape of the model, {algorithm.local_variables}"
        sent = ", and sent" if algorithm.personal.are_sent else ""
        mixed = "; mixed with the shared model" if algorithm.personal.mixing is not None else ""
        if algorithm.personal.role == "offset":
            parts = _variables(algorithm.personal.layers)
            return f"an offset of {parts}, {algorithm.local_variables}"
        parts = _variables(algorithm.personal.layers) if algorithm.personal.layers else "the model"
        return f"a copy of {parts}, {algorithm.local_variables}{sent}{mixed}"
    if algorithm.choice:
        if algorithm.choice.mixes:
            return f"the weights of {algorithm.choice.clusters} models, {algorithm.local_variables}"
        return f"the choice of one of {algorithm.choice.clusters} models, renewed in each round"
    if algorithm.local_variables == "none" or not (method.local_part or layers):
        if any(map(_has_memory, _finetuning(method))):
            return "a memory of its examples"
        tuned = method.finetunes is not None
        return "a copy, fine-tuned before it predicts" if tuned else "nothing"
    part = method.local_part
    named = _WORDS[part] if part and len(layers) == 1 else ""
    named = named or " and ".join(_WORDS.get(name, f"`{name}`") for name in layers)
    return f"{named}, {algorithm.local_variables}"


def _adaptation(method: type[Method]) -> str:
    if EPOCHS in method.options.declarations():
        return "updates all variables, in the number of passes over all data that validates best"
    phases = _finetuning(method)
    steps = [f"{'' if _has_memory(phase) else 'updates '}{_phase(phase)}" for phase in phases]
    algorithm = method.build(_options_of(method)(), _LAYERS)
    if algorithm.choice and not algorithm.choice.mixes:
        steps.insert(0, "chooses a model")
    elif algorithm.local_variables == "rebuilt":
        steps.insert(0, "rebuilds its local variables")
    elif algorithm.local_variables == "kept":
        steps.insert(0, "reads its kept values, or builds them if it has none")
    return "; then ".join(steps) or "does nothing"


def _finetuning(method: type[Method]) -> Sequence[Phase]:
    return method.finetuning(_options_of(method)(), _LAYERS)


def _has_memory(phase: Phase) -> bool:
    return isinstance(phase, NeighboursPhase)


def _tasks(method: type[Method]) -> str:
    tasks = {task.name: method in task.methods.values() for task in all_tasks().values()}
    missing = [name for name, has_it in tasks.items() if not has_it]
    if len(missing) <= 1:
        return " but ".join(["all", *missing])
    return ", ".join(name for name, has_it in tasks.items() if has_it)


def _figures(methods: Sequence[type[Method]]) -> str:
    titles = "|".join(re.escape(m.title) for m in methods)
    names = "|".join(m.name for m in methods)
    # Pages with a title in the first cell of a row, or with a name as code, report on the method.
    pattern = re.compile(rf"^\| *\**({titles})\b|`({names})`", re.MULTILINE)
    links = []
    for path in sorted((DOCS / "results").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if path.name != "index.md" and pattern.search(text):
            heading = next(line for line in text.splitlines() if line.startswith("# "))
            links.append(f"- [{heading[2:]}](../results/{path.name})")
    return "\n".join(links) or "Not measured yet."


if __name__ == "__main__":
    write()
