"""The settings of a sweep, from a text such as `client_learning_rate=0.1,0.3;embedding_dim=16,32`.

With random sampling, a value may be a range, `0.01..1`, or `log:0.01..1` for its logarithm. Several
values of one option are joined by `+`; `none` is no value.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any, Union

import numpy as np

from fedpersonal.errors import UserError, did_you_mean, quoted
from fedpersonal.options import Declaration, Options, Value
from fedpersonal.randomness import Purpose, generator

_LOG = "log:"
_DIGITS = 4
_TRIES = 100  # Attempts for each sampled setting.
# Parts of an option's range. Each of this number of successive settings samples another part, so
# that few samples leave no gap.
_PARTS = 3
Setting = Mapping[str, Value]


@dataclasses.dataclass(frozen=True)
class Range:
    """A range of numbers to sample from.

    Attributes:
        low: The lowest number.
        high: The highest number.
        is_log: Whether logarithms of numbers, not numbers, are sampled uniformly.
        is_whole: Whether the numbers are whole.
    """

    low: float
    high: float
    is_log: bool
    is_whole: bool

    def at(self, share: float) -> Value:
        """Returns the number, rounded to a few digits, at a share of the range, in [0, 1)."""
        if self.is_whole and not self.is_log:
            return int(self.low) + int(share * (int(self.high) - int(self.low) + 1))
        low, high = map(math.log, (self.low, self.high)) if self.is_log else (self.low, self.high)
        number = low + share * (high - low)
        number = math.exp(number) if self.is_log else number
        number = round(number) if self.is_whole else float(f"{number:.{_DIGITS}g}")
        return min(max(number, self.low), self.high)


Values = Union[tuple[Value, ...], Range]


def parse_grid(text: str, options: type[Options]) -> dict[str, Values]:
    """Returns the values of each option in a text.

    Args:
        text: The text.
        options: The class that has the options.

    Raises:
        UserError: If the text is malformed, or has an unknown option or an invalid value.
    """
    grid: dict[str, Values] = {}
    declared = options.declarations()
    for part in text.split(";"):
        name, equals, values = (word.strip() for word in part.partition("="))
        if not name and not equals:
            continue
        if not equals or not values:
            raise _mistake(f"{quoted(part.strip())} has no values; write it as name=value,value")
        if name not in declared:
            suggestion = did_you_mean(name, declared)
            raise UserError(f"--grid: {quoted(name)} is no option that can be chosen{suggestion}")
        if name in grid:
            raise _mistake(f"{name} appears twice")
        grid[name] = _values(values, declared[name])
    if not grid:
        raise _mistake("it has no option; write it as name=value,value;name=value,value")
    return grid


def all_settings(grid: Mapping[str, Values]) -> list[Setting]:
    """Returns every combination of values, the last option varying fastest.

    Raises:
        UserError: If an option has a range.
    """
    for name, values in grid.items():
        if isinstance(values, Range):
            raise _mistake(f"{name} has a range, which needs --random=N")
    lists = [values for values in grid.values() if isinstance(values, tuple)]
    return [dict(zip(grid, chosen)) for chosen in itertools.product(*lists)]


def sample_settings(grid: Mapping[str, Values], number: int, seed: int) -> list[Setting]:
    """Returns different random combinations of values; a larger number begins with the same ones.

    They are successive Latin hypercubes: of each three settings, one has a value from the lowest
    third of an option's range, one from the middle third, one from the highest.

    Args:
        grid: The values of each option.
        number: Number of settings.
        seed: Seed of the samples.

    Raises:
        UserError: If the grid has fewer settings.
    """
    random = generator(Purpose.SETTINGS, seed)
    settings: dict[tuple[Value, ...], Setting] = {}
    for _ in range(_TRIES * number):
        parts = random.permuted(np.tile(np.arange(_PARTS), (len(grid), 1)), axis=1)
        for shares in ((parts + random.random(parts.shape)) / _PARTS).T.tolist():
            pairs = zip(grid.items(), shares)
            setting = {name: _at(values, share) for (name, values), share in pairs}
            settings.setdefault(tuple(setting.values()), setting)
            if len(settings) == number:
                return list(settings.values())
    raise UserError(
        f"--random={number}: --grid has only {len(settings)} settings; choose fewer, or leave "
        "--random out for all of them."
    )


def values_text(values: Mapping[str, Any]) -> str:
    """Returns options in words, such as `client_learning_rate=0.1, embedding_dim=16`."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in values.items())


def value_text(value: Any) -> str:
    """Returns a value in the format of `--grid`."""
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _at(values: Values, share: float) -> Value:
    return values.at(share) if isinstance(values, Range) else values[int(share * len(values))]


def _values(text: str, option: Declaration) -> Values:
    is_number = option.kind in (int, float) and not option.is_list
    if is_number and (".." in text or text.startswith(_LOG)):
        return _range(text, option)
    values: list[Value] = []
    for word in text.split(","):
        value = _value(word.strip(), option)
        if value in values:
            raise _mistake(f"{option.name} has {quoted(word.strip())} twice")
        values.append(value)
    return tuple(values)


def _range(text: str, option: Declaration) -> Range:
    is_log = text.startswith(_LOG)
    words = text.removeprefix(_LOG).split("..")
    if len(words) != 2 or "," in text or not all(words):
        raise _mistake(f"{option.name} has {quoted(text)}; a range is low..high, without others")
    low, high = (_value(word.strip(), option) for word in words)
    if not isinstance(low, (int, float)) or not isinstance(high, (int, float)) or low >= high:
        raise _mistake(f"{option.name}={text}: the first number must be below the second")
    if is_log and low <= 0:
        raise _mistake(f"{option.name}={text}: logarithms need numbers above 0")
    return Range(low, high, is_log, option.kind is int)


def _value(word: str, option: Declaration) -> Value:
    """Returns the value of a word."""
    if option.is_optional and word == "none":
        return None
    ones = [_one(part, option) for part in (word.split("+") if option.is_list else [word])]
    try:
        return option.check(tuple(ones) if option.is_list else ones[0])
    except UserError as error:
        raise UserError(f"--grid: {error}") from None


def _one(word: str, option: Declaration) -> Value:
    if option.kind is bool:
        return {"true": True, "false": False}.get(word, word)
    try:
        return option.kind(word)
    except ValueError:
        return word  # `check` reports the valid values.


def _mistake(message: str) -> UserError:
    return UserError(f"--grid: {message}.")
