"""Converts the arguments of a task's function to a payload, and a payload to arguments.

At enqueue a payload is decoded with the worker's own decoder, so that every accepted job can be
called. Default values are not stored: the handler's own apply when it runs.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, get_args, get_type_hints

import msgspec

from holdfast.core import codec
from holdfast.errors import InvalidJob, UsageError
from holdfast.worker.child.handlers import Arguments

_GATHERED = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class Signature:
    """The signature of one task. `context` names the parameter for the Context, if there is one."""

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        self.task = task
        try:
            self._shape = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"the parameters of task {task} cannot be inspected: {error}"
            ) from None
        hints = type_hints(task, function)
        self.context = next((name for name, hint in hints.items() if is_context(hint)), None)
        self.parameters = {
            name: parameter
            for name, parameter in self._shape.parameters.items()
            if name != self.context
        }
        self._check_context()
        self.types = {
            name: carried(f"parameter {name} of task {task}", hints.get(name))
            for name in self.parameters
        }
        self.answer: Any = hints.get("return", Any)
        self._bindable = self._shape.replace(
            parameters=list(self.parameters.values()), return_annotation=Parameter.empty
        )
        self._rest = self._only(Parameter.VAR_KEYWORD)
        self._several = self._only(Parameter.VAR_POSITIONAL)

    def payload(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> bytes:
        """JSON of the arguments by name; InvalidJob names the argument that is wrong."""
        values = self._named(positional, named)
        try:
            payload = codec.encode(values)
            self._read(payload)
        except InvalidJob:
            self._check_each(values)
            raise
        except msgspec.ValidationError as error:
            raise self._refused(error) from None
        return payload

    def arguments(self, payload: bytes, content_type: str) -> Arguments:
        """The arguments for the function; UsageError if the payload does not fit."""
        payload, content_type = codec.open_body(payload, content_type)
        if not _is_json(content_type):
            return self._raw(payload, content_type)
        try:
            if payload[:1] == b"{":
                return self._placed(self._read(payload))
            given = codec.decode(payload) if payload else None
            if given is not None and not isinstance(given, list):
                raise InvalidJob(
                    f"the payload of task {self.task} is a {type(given).__name__}: it must be an "
                    "object of its arguments by name, an array of them in order, or null"
                )
            again = codec.encode(self._named(tuple(given or ()), {}))
            return self._placed(self._read(again))
        except msgspec.ValidationError as error:
            raise self._refused(error) from None

    def placed(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> Arguments | None:
        """Arguments without the Context, so that it can be added by name; None if they do not
        fit."""
        try:
            values = self._bindable.bind(*positional, **named).arguments
        except TypeError:
            return None
        rest = values.pop(self._rest, {}) if self._rest else {}
        return self._placed({**values, **rest})

    def result(self, value: Any) -> bytes | None:
        """The stored form of a return value: bytes unchanged, anything else as JSON."""
        return value if value is None or isinstance(value, bytes) else codec.encode(value)

    def read_result(self, stored: bytes | None) -> Any:
        """A stored result decoded by the return annotation, or as plain JSON without one."""
        if self.answer is bytes or stored is None:
            return stored
        try:
            return msgspec.json.decode(stored, type=self.answer)
        except (msgspec.MsgspecError, TypeError):
            # The stored value does not match the annotation: return it as plain JSON.
            try:
                return msgspec.json.decode(stored)
            except msgspec.DecodeError:
                return stored

    def _named(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        if self.context is not None and self.context in named:
            raise InvalidJob(
                f"{self.context} of task {self.task} is passed by the worker: leave it out"
            )
        try:
            bound = self._bindable.bind(*positional, **named).arguments
        except TypeError as error:
            raise InvalidJob(f"task {self.task}: {error}") from None
        if self._rest is None or self._rest not in bound:
            return bound
        extra: dict[str, Any] = bound.pop(self._rest)
        for name in extra:
            if name in self.parameters:
                raise InvalidJob(f"task {self.task}: {name} is given twice or by a wrong name")
        return {**bound, **extra}

    @functools.cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        fields: list[Any] = []
        for name, parameter in self.parameters.items():
            hint = self.types[name]
            if parameter.kind is Parameter.VAR_KEYWORD:
                continue
            if parameter.kind is Parameter.VAR_POSITIONAL:
                fields.append((name, types.GenericAlias(list, (hint,)), msgspec.UNSET))
            elif parameter.default is Parameter.empty:
                fields.append((name, hint))
            else:
                fields.append((name, hint, msgspec.UNSET))
        kind = msgspec.defstruct(
            "Arguments", fields, forbid_unknown_fields=self._rest is None, kw_only=True
        )
        return msgspec.json.Decoder(kind)

    @functools.cached_property
    def _decode_rest(self) -> Callable[[bytes], Any]:
        return msgspec.json.Decoder(dict[str, Any]).decode

    def _read(self, payload: bytes) -> dict[str, Any]:
        try:
            read = self._decoder.decode(payload)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise InvalidJob(f"the payload of task {self.task} cannot be read: {error}") from None
        values = {
            name: value
            for name in read.__struct_fields__
            if (value := getattr(read, name)) is not msgspec.UNSET
        }
        if self._rest is not None:
            hint = self.types[self._rest]
            for name, value in self._decode_rest(payload).items():
                if name not in read.__struct_fields__ and name not in self.parameters:
                    try:
                        values[name] = msgspec.convert(value, hint)
                    except msgspec.ValidationError as error:
                        raise InvalidJob(f"task {self.task}: {name}: {_plain(error)[0]}") from None
        return values

    def _placed(self, values: dict[str, Any]) -> Arguments:
        """Split values into positional and named arguments. Positional-only parameters go by
        position, with the defaults before them filled in."""
        by_place: list[Any] = []
        defaults: list[Any] = []
        several = values.pop(self._several, []) if self._several else []
        for name, parameter in self.parameters.items():
            alone = parameter.kind is Parameter.POSITIONAL_ONLY
            if not alone and not (several and parameter.kind is Parameter.POSITIONAL_OR_KEYWORD):
                break
            if name in values:
                by_place += [*defaults, values.pop(name)]
                defaults.clear()
            else:
                defaults.append(parameter.default)
        return (*by_place, *(defaults if several else ()), *several), values

    def _raw(self, payload: bytes, content_type: str) -> Arguments:
        names = [name for name, each in self.parameters.items() if each.kind not in _GATHERED]
        if len(names) != 1 or self.types[names[0]] not in (bytes, Any):
            raise InvalidJob(
                f"task {self.task} takes JSON, but the job has content type {content_type}: only"
                " a task with a single parameter of type bytes accepts other types"
            )
        return self._placed({names[0]: payload})

    def _check_context(self) -> None:
        """Raise unless the Context can be passed by name along with any positional arguments."""
        if self.context is None:
            return
        names = list(self._shape.parameters)
        after = names[names.index(self.context) :]
        kinds = {self._shape.parameters[name].kind for name in after}
        if kinds & {Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL}:
            raise UsageError(
                f"{self.context} of task {self.task} must be the last parameter or come after a *: "
                "it is passed by name"
            )

    def _check_each(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            try:
                codec.encode(value)
            except InvalidJob as error:
                raise InvalidJob(f"task {self.task}: {name}: {error}") from None

    def _refused(self, error: msgspec.ValidationError) -> InvalidJob:
        text, where = _plain(error)
        return InvalidJob(f"task {self.task}: {where}{': ' if where else ''}{text}")

    def _only(self, kind: object) -> str | None:
        return next((name for name, each in self.parameters.items() if each.kind is kind), None)


class BatchSignature(Signature):
    """The signature of a batch task: each job's payload is one element of its list argument."""

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        super().__init__(task, function)
        if len(self.parameters) != 1 or any(
            each.kind in _GATHERED or each.kind is Parameter.KEYWORD_ONLY
            for each in self.parameters.values()
        ):
            raise UsageError(
                f"batch task {task} must have one parameter, the list, besides its Contexts"
            )
        [(self._name, whole)] = self.types.items()
        self.answer = next(iter(get_args(self.answer)), Any)
        element = get_args(whole)
        self._element: Any = element[0] if element else Any
        self._elements = msgspec.json.Decoder(self._element)

    def payload(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> bytes:
        if len(positional) != 1 or named:
            raise InvalidJob(f"task {self.task} takes one argument per job, an element of its list")
        payload = codec.encode(positional[0])
        self.arguments(payload, codec.JSON)
        return payload

    def arguments(self, payload: bytes, content_type: str) -> Arguments:
        payload, content_type = codec.open_body(payload, content_type)
        if not _is_json(content_type):
            if self._element not in (bytes, Any):
                raise InvalidJob(
                    f"task {self.task} takes JSON, but the job has content type {content_type}"
                )
            return (payload,), {}
        try:
            return (self._elements.decode(payload or b"null"),), {}
        except msgspec.ValidationError as error:
            text, where = _plain(error)
            at = f"{self._name}[…]{'.' if where else ''}{where}"
            raise InvalidJob(f"task {self.task}: {at}: {text}") from None
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise InvalidJob(f"the payload of task {self.task} cannot be read: {error}") from None


def _is_json(content_type: str) -> bool:
    return content_type == codec.JSON or content_type.partition(";")[0].rstrip() == codec.JSON


def _plain(error: msgspec.ValidationError) -> tuple[str, str]:
    """The error text, and the path of names to the wrong value."""
    text, _, where = str(error).replace("`", "").partition(" - at $")
    for prefix in ("Object missing required field ", "Object contains unknown field "):
        if text.startswith(prefix):
            name = text.removeprefix(prefix)
            where = f"{where}.{name}"
            text = "it is missing" if "missing" in prefix else "there is no such argument"
    return text, where.lstrip(".")


_CONTEXT = "holdfast.worker.child.context.Context"
_CONTEXT_TEXTS = ("Context", "holdfast.Context", "list[Context]", "list[holdfast.Context]")


def type_hints(task: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The type hints of a function, resolved one by one, so that an error names its parameter."""
    plain = inspect.unwrap(function)
    names = getattr(plain, "__globals__", {})
    hints = {}
    for name, hint in inspect.get_annotations(plain).items():
        if isinstance(hint, str) and hint.replace('"', "").replace("'", "") in _CONTEXT_TEXTS:
            # Recognised by its text: Context is often imported only for type checkers.
            hints[name] = hint
            continue
        alone: Any = types.SimpleNamespace(__annotations__={name: hint})
        try:
            hints.update(get_type_hints(alone, globalns=names, include_extras=True))
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            if name != "return":
                raise UsageError(
                    f"the type hint {str(hint)[:80]!r} of parameter {name} of task {task} cannot "
                    f"be resolved ({error}): import it at run time, at the top of the module"
                ) from None
    return hints


def is_context(hint: Any) -> bool:
    """Whether a type hint is the Context or a list of them."""
    if isinstance(hint, str):
        return True
    named = f"{getattr(hint, '__module__', '')}.{getattr(hint, '__qualname__', '')}"
    return named == _CONTEXT or any(is_context(each) for each in get_args(hint) if each != hint)


def carried(what: str, hint: Any) -> Any:
    """The hint, or Any without one; UsageError if JSON cannot be decoded to that type."""
    if hint is None:
        return Any
    try:
        msgspec.json.Decoder(hint)
        custom = isinstance(msgspec.inspect.type_info(hint), msgspec.inspect.CustomType)
        reason = f"{getattr(hint, '__name__', hint)} is not a JSON type"
    except TypeError as error:
        custom, reason = True, str(error).partition("\n")[0]
    if custom:
        raise UsageError(
            f"{what} cannot be checked: {reason}; use plain types, a dataclass or a msgspec.Struct"
        )
    return hint
