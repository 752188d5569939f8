"""A function's signature → how its arguments become a payload, and a payload its arguments.

What is enqueued is read back at once by the very decoder that the worker uses, so what is
accepted here can be called there. Defaults are not stored: the handler's own apply.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, get_args

import msgspec

from holdfast.core import codec
from holdfast.errors import InvalidJob, UsageError
from holdfast.hints import carried, is_context, type_hints
from holdfast.worker.handlers import Arguments

_GATHERED = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class Signature:
    """Of one task. `context` names the parameter that gets the Context, if there is one."""

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        self.task = task
        try:
            self._shape = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"the parameters of task {task} cannot be found out: {error}"
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
        """JSON of the arguments by name, or InvalidJob with the name of the one that is wrong."""
        values = self._named(positional, named)
        try:
            payload = codec.encode(values)
            self._read(payload)
        except InvalidJob:
            self._blame(values)
            raise
        except msgspec.ValidationError as error:
            raise self._refused(error) from None
        return payload

    def arguments(self, payload: bytes, content_type: str) -> Arguments:
        """What the function is called with; UsageError when the payload does not fit it."""
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
        """Arguments that leave the Context out, so that it can be added by its name; None when
        they do not fit so."""
        try:
            values = self._bindable.bind(*positional, **named).arguments
        except TypeError:
            return None
        rest = values.pop(self._rest, {}) if self._rest else {}
        return self._placed({**values, **rest})

    def result(self, value: Any) -> bytes | None:
        """What is kept of what the function returned: bytes as they are, anything else as JSON."""
        return value if value is None or isinstance(value, bytes) else codec.encode(value)

    def read_result(self, stored: bytes | None) -> Any:
        """As the return annotation says; without one, as JSON has it."""
        if self.answer is bytes or stored is None:
            return stored
        try:
            return msgspec.json.decode(stored, type=self.answer)
        except (msgspec.MsgspecError, TypeError):
            # An annotation is no promise: the value is there, only not as it was said to be.
            try:
                return msgspec.json.decode(stored)
            except msgspec.DecodeError:
                return stored

    def _named(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        if self.context is not None and self.context in named:
            raise InvalidJob(
                f"{self.context} of task {self.task} is given by the worker: leave it out"
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
                raise InvalidJob(f"task {self.task}: {name} is given twice, or by a wrong name")
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
        """What can only be given by its place is, with the defaults before it filled in."""
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
                f"task {self.task} takes JSON, and the job brings {content_type}: only a task with "
                "one parameter, of type bytes, takes that"
            )
        return self._placed({names[0]: payload})

    def _check_context(self) -> None:
        """It is given by its name, which must be possible whatever else is given by its place."""
        if self.context is None:
            return
        names = list(self._shape.parameters)
        after = names[names.index(self.context) :]
        kinds = {self._shape.parameters[name].kind for name in after}
        if kinds & {Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL}:
            raise UsageError(
                f"{self.context} of task {self.task} must be last, or come after a *: it is given "
                "by its name"
            )

    def _blame(self, values: dict[str, Any]) -> None:
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
    """Of a task that gets a list: each job's payload is one element of it, as it stands."""

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        super().__init__(task, function)
        if len(self.parameters) != 1 or any(
            each.kind in _GATHERED or each.kind is Parameter.KEYWORD_ONLY
            for each in self.parameters.values()
        ):
            raise UsageError(
                f"batch task {task} must have one parameter, the list, beside that of its Contexts"
            )
        [(self._name, whole)] = self.types.items()
        self.answer = next(iter(get_args(self.answer)), Any)
        element = get_args(whole)
        self._element: Any = element[0] if element else Any
        self._elements = msgspec.json.Decoder(self._element)

    def payload(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> bytes:
        if len(positional) != 1 or named:
            raise InvalidJob(f"task {self.task} takes one argument a job, an element of its list")
        payload = codec.encode(positional[0])
        self.arguments(payload, codec.JSON)
        return payload

    def arguments(self, payload: bytes, content_type: str) -> Arguments:
        if not _is_json(content_type):
            if self._element not in (bytes, Any):
                raise InvalidJob(f"task {self.task} takes JSON, and the job brings {content_type}")
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
    """What is wrong, and where: a path of names."""
    text, _, where = str(error).replace("`", "").partition(" - at $")
    for prefix in ("Object missing required field ", "Object contains unknown field "):
        if text.startswith(prefix):
            name = text.removeprefix(prefix)
            where = f"{where}.{name}"
            text = "it is missing" if "missing" in prefix else "there is no such argument"
    return text, where.lstrip(".")
