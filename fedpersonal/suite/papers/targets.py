"""The tables and figures that can be reproduced, by name."""

from __future__ import annotations

from fedpersonal.suite.tasks.labels.task import TASK as DOCUMENTS
from fedpersonal.suite.tasks.next_word.task import TASK as NEXT_WORD
from fedpersonal.suite.tasks.ranking.task import TASK as INTERACTIONS
from fedpersonal.suite.tasks.ratings.task import TASK as RATINGS
from fedpersonal.suite.tasks.task import Task
from fedpersonal.suite.tasks.utterances.task import TASK as UTTERANCES

# The module of each target, its function, and the task whose options it takes.
TARGETS: dict[str, tuple[str, str, Task]] = {
    "table1": ("ratings", "table1", RATINGS),
    "table2": ("next_word", "table2", NEXT_WORD),
    "figure2": ("next_word", "figure2", NEXT_WORD),
    "figure3": ("next_word", "figure3", NEXT_WORD),
    "table3": ("furl", "run", DOCUMENTS),
    "fedperc_tables": ("fedperc", "tables", UTTERANCES),
    "fedperc_parts": ("fedperc", "parts", UTTERANCES),
    "dp_table": ("privacy", "run", RATINGS),
    "recommendation": ("recommendation", "run", INTERACTIONS),
}
