"""What the command says when it was typed wrong: which verb, which word, and where to look."""

from __future__ import annotations

from cyclopts import Argument, CycloptsError
from cyclopts.exceptions import MissingArgumentError, RepeatArgumentError, UnusedCliTokensError


def words(error: CycloptsError) -> str:
    """One sentence or two on what is wrong, and where to look."""
    typed = error.command_chain or ()
    verb = " ".join(("shoal", *(word for word in typed if word != "shoal")))
    remedy = f"Ask `{verb} --help`."
    match error:
        case UnusedCliTokensError(unused_tokens=[first, *_]):
            return f"`{verb}` takes no more arguments, but got {first!r}. {remedy}"
        case RepeatArgumentError():
            option = error.token.keyword or _name(error)
            return f"{option} is given more than once, or with its opposite. {remedy}"
        case MissingArgumentError(keyword=None, argument=Argument(index=int())):
            return f"`{verb}` needs {_name(error).upper()}{_about(error)} {remedy}"
        case MissingArgumentError(tokens_so_far=[]):
            return f"{error.keyword or _name(error)} needs a value{_about(error)} {remedy}"
    return f"{error} {remedy}"


def _name(error: CycloptsError) -> str:
    """The argument's name, without dashes where its place says what it is."""
    argument = error.argument
    if argument is None:
        return "something"
    name = argument.names[0] if argument.names else argument.name
    return name.removeprefix("--") if argument.index is not None else name


def _about(error: CycloptsError) -> str:
    """What help says of the argument, as the end of a sentence."""
    text = error.argument.parameter.help if error.argument is not None else None
    return f": {' '.join(text.split())}" if text else "."
