"""Checks of the arguments of public calls against the types of the signature, before the call does anything else.

An argument of another type than its parameter raises `InvalidArgument`, which is also a TypeError. A value of the right
type that the call does not allow raises the error that the call documents. A missing or unknown argument raises
Python's own TypeError.

`checks_arguments` decorates a class or a function. It checks the types that annotations name: texts, numbers, times,
literals, and lists and mappings of them. Parameters that take anything (`Rows`) are checked by the call itself.

Options that several calls share are a TypedDict, and the calls have `**options: Unpack[...]`. In the signature of the
decorated call, which `help` prints, each of them is a parameter with the default None.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, Union, Unpack, get_args, get_origin, get_type_hints

from icedb.errors import InvalidArgument, InvalidOption, InvalidURI

__all__ = ["checks_arguments"]

T = TypeVar("T")

#: Names of builtin types in messages.
_NOUNS: dict[object, str] = {
    str: "text",
    bytes: "bytes",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    NoneType: "None",
    timedelta: "a timedelta",
}
_SHOWN_CHARS_MAX = 60
#: Parameters that are addresses, whose errors are InvalidURI.
_ADDRESSES = ("uri", "log_uri")


@dataclass(frozen=True, slots=True)
class _Type:
    """A checkable annotation: its description in messages, and the test of a value. `choices`: it is a Literal."""

    noun: str
    fits: Callable[[object], bool]
    choices: bool = False


def checks_arguments(target: T) -> T:
    """Check the arguments of a function, or of a class's public methods and constructor, before each call.

    The calls raise InvalidArgument for an argument of another type. They raise InvalidOption for text that is not
    Unicode or contains a NUL character, which DuckDB and the operating system would treat as the end of the text.
    """
    if not isinstance(target, type):
        return _checked(target)  # type: ignore[arg-type, return-value]
    for name, member in list(vars(target).items()):
        if name == "__init__" or not name.startswith("_"):
            if inspect.isfunction(member):
                setattr(target, name, _checked(member))
            elif isinstance(member, classmethod | staticmethod):
                setattr(target, name, type(member)(_checked(member.__func__)))
    return target


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    declared = inspect.signature(function)
    options_class = _options_class(function, declared)
    signature = _expanded(declared, options_class)
    types: dict[str, _Type | None] = {}

    def check(arguments: Mapping[str, object]) -> None:
        if not types:
            types.update(_types_of(function, signature, options_class))
        for name, value in arguments.items():
            type_ = types.get(name)
            if type_ is None or value is signature.parameters[name].default:
                continue
            if not type_.fits(value):
                where = _where(function, arguments)
                if type_.choices and isinstance(value, str):  # the right type
                    raise InvalidOption(f"{where}: {name} must be {type_.noun}, not {value[:_SHOWN_CHARS_MAX]!r}.")
                raise InvalidArgument(f"{where}: {name} must be {type_.noun}, not {_shown(value)}.")
            try:
                _check_texts(value, name, lambda: _where(function, arguments))
            except RecursionError:
                where = _where(function, arguments)
                raise InvalidArgument(f"{where}: {name} contains itself, or is nested too deeply.") from None

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        check(signature.bind(*args, **options).arguments)
        return function(*args, **options)

    @wraps(function)
    async def call_async(*args: Any, **options: Any) -> Any:
        check(signature.bind(*args, **options).arguments)
        return await function(*args, **options)

    checked: Callable[..., Any] = call_async if inspect.iscoroutinefunction(function) else call
    vars(checked)["__signature__"] = signature
    return checked


def _options_class(function: Callable[..., Any], signature: inspect.Signature) -> type | None:
    """Return the TypedDict of a function with `**options: Unpack[...]`."""
    for parameter in signature.parameters.values():
        annotation = parameter.annotation
        if parameter.kind is parameter.VAR_KEYWORD and isinstance(annotation, str) and annotation.startswith("Unpack["):
            annotation = eval(annotation, vars(sys.modules[function.__module__]))  # noqa: S307  of this library
        if get_origin(annotation) is Unpack:
            options_class: type = get_args(annotation)[0]
            return options_class
    return None


def _expanded(signature: inspect.Signature, options_class: type | None) -> inspect.Signature:
    """Replace the parameter `**options` of a signature by a parameter for each key of the TypedDict."""
    if options_class is None:
        return signature
    keyword = inspect.Parameter.KEYWORD_ONLY
    shared = [
        inspect.Parameter(name, keyword, default=None, annotation=getattr(annotation, "__forward_arg__", annotation))
        for name, annotation in options_class.__annotations__.items()
    ]
    *own, _ = signature.parameters.values()
    parameters = [*(p for p in own if p.kind is not keyword), *shared, *(p for p in own if p.kind is keyword)]
    return signature.replace(parameters=parameters)


def _where(function: Callable[..., Any], arguments: Mapping[str, object]) -> str:
    """The table of a call, or the function's name before there is a table."""
    owner = arguments.get("self")
    for name in ("uri", "table") if owner is not None and "__init__" not in function.__qualname__ else ():
        text = getattr(owner, name, None)
        if isinstance(text, str):
            return text
    return function.__qualname__.removesuffix(".__init__")


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def _shown(value: object) -> str:
    """Describe a value for a message. A text may be a secret, so only its type is named."""
    if value is None or isinstance(value, bool | int | float | date | timedelta):
        text = repr(value) if not isinstance(value, int) or value.bit_length() < 200 else "a number of many digits"
        if len(text) <= _SHOWN_CHARS_MAX:
            return text
    if isinstance(value, list | tuple | set | frozenset) and value:
        return f"{_with_article(type(value).__name__)} with {_nouns({type(v).__name__ for v in value})}"
    if isinstance(value, Mapping) and value:
        pairs = {f"{type(k).__name__}: {type(v).__name__}" for k, v in value.items()}
        return f"{_with_article(type(value).__name__)} with {_nouns(pairs)}"
    return _with_article(type(value).__name__) if not isinstance(value, type) else f"the type {value.__name__}"


def _nouns(names: set[str]) -> str:
    return ", ".join(sorted(names)[:3])


def _check_texts(value: Any, name: str, where: Callable[[], str]) -> None:
    """Raise InvalidOption for text that no store, file or query can hold, also inside lists and mappings."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    error_type = InvalidURI if name in _ADDRESSES else InvalidOption
    if isinstance(value, str):
        if "\0" in value:
            raise error_type(f"{where()}: {name} contains a NUL character at {value.index(chr(0))}. Remove it.")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise error_type(
                f"{where()}: {name} contains half of a surrogate pair at {error.start}, which is not Unicode text. "
                "Decode it with the right encoding."
            ) from None
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _check_texts(key, name, where)
            _check_texts(inner, name, where)
    elif _is_list(value):
        for inner in value:
            _check_texts(inner, name, where)


# ------------------------------------------------------------------------------------------------ annotations


def _types_of(
    function: Callable[..., Any], signature: inspect.Signature, options_class: type | None
) -> dict[str, _Type | None]:
    """Return parameter -> type; None if it is not checked: `self`, and annotations that do not exist at runtime."""
    names = vars(sys.modules[function.__module__])
    types: dict[str, _Type | None] = {"": None}
    shared = {} if options_class is None else get_type_hints(options_class)
    types.update({name: _type_of(annotation) for name, annotation in shared.items()})
    for name, parameter in signature.parameters.items():
        if name in shared:
            continue
        annotation = parameter.annotation
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) or annotation is parameter.empty:
            continue
        if isinstance(annotation, str):
            try:
                annotation = eval(annotation, names)  # noqa: S307  an annotation of this library
            except NameError:  # imported under TYPE_CHECKING only
                types[name] = _named(annotation)
                continue
        types[name] = _type_of(annotation)
    return types


def _named(annotation: str) -> _Type | None:
    """Test for a class that is not imported at runtime by the names of the value's classes."""
    if not annotation.isidentifier():
        return None
    return _Type(_with_article(annotation), lambda v: any(c.__name__ == annotation for c in type(v).__mro__))


def _type_of(annotation: Any) -> _Type | None:
    """Return the test of an annotation; None if every value passes, or if a test would have to consume an iterator."""
    if annotation is None:
        annotation = NoneType
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_of(inner[0])
    if origin is Literal:
        choices = ", ".join(map(repr, inner))
        return _Type(f"one of {choices}" if len(inner) > 1 else choices,
                     lambda v: any(type(v) is type(c) and v == c for c in inner), choices=True)  # fmt: skip
    if origin in (Union, UnionType):
        return _union_of(inner)
    if origin is not None:
        return _generic_of(origin, inner)
    if annotation is int:
        return _Type(_NOUNS[int], lambda v: isinstance(v, int) and not isinstance(v, bool))
    if annotation is float:
        return _Type(_NOUNS[float], lambda v: isinstance(v, int | float) and not isinstance(v, bool) and v == v)
    if annotation is Any or annotation is object or not isinstance(annotation, type):
        return None
    if getattr(annotation, "_is_protocol", False):
        names = [n for n in vars(annotation) if not n.startswith("_")]
        return _Type(_with_article(annotation.__name__), lambda v: all(hasattr(v, n) for n in names))
    noun = _NOUNS.get(annotation) or _with_article(annotation.__name__)
    return _Type(noun, lambda v: isinstance(v, annotation))


def _union_of(inner: tuple[Any, ...]) -> _Type | None:
    types = [_type_of(a) for a in inner]
    if any(t is None for t in types):
        return None
    checks = [t for t in types if t is not None]
    nouns, choices = " or ".join(t.noun for t in checks), any(t.choices for t in checks)
    return _Type(nouns, lambda v: any(t.fits(v) for t in checks), choices)


def _generic_of(origin: Any, inner: tuple[Any, ...]) -> _Type | None:
    if origin is abc.Callable:
        return _Type("a function", callable)
    if origin is tuple and inner[-1] is not Ellipsis:
        items = [_type_of(a) for a in inner]
        nouns = ", ".join("anything" if t is None else t.noun for t in items)
        return _Type(f"a tuple ({nouns})", lambda v: isinstance(v, tuple | list) and len(v) == len(items)
                     and all(t is None or t.fits(x) for t, x in zip(items, v, strict=True)))  # fmt: skip
    if isinstance(origin, type) and issubclass(origin, abc.Mapping):
        key, value = (_type_of(a) for a in inner)
        nouns = " to ".join("anything" if t is None else t.noun for t in (key, value))
        return _Type(f"a dict of {nouns}", lambda v: isinstance(v, abc.Mapping) and all(
            (key is None or key.fits(k)) and (value is None or value.fits(x)) for k, x in v.items()))  # fmt: skip
    if origin in (abc.Sequence, list, tuple):
        item = _type_of(inner[0])
        noun = "a list" if item is None else f"a list of {_plural(item.noun)}"
        return _Type(noun, lambda v: _is_list(v) and all(item is None or item.fits(x) for x in v))
    if origin is abc.Iterable:  # the items are not checked: it may be an iterator
        return _Type("a list", lambda v: isinstance(v, abc.Iterable) and not isinstance(v, _TEXTS))
    if isinstance(origin, type) and issubclass(origin, os.PathLike):
        return _Type("a path", lambda v: isinstance(v, os.PathLike) and isinstance(os.fspath(v), str))
    return None


_TEXTS = (str, bytes, bytearray, memoryview)


def _is_list(value: Any) -> TypeGuard[abc.Collection[Any]]:
    return isinstance(value, abc.Sequence | abc.KeysView) and not isinstance(value, _TEXTS)


def _plural(noun: str) -> str:
    return "texts" if noun == "text" else noun
