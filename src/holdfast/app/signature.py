"""Converts the arguments of a task's function to a payload, and a payload to arguments.

At enqueue a payload is decoded with the worker's own decoder and compared with the arguments, so
that every accepted job can be called, and with what was given. Default values are not stored: the
handler's own apply when it runs.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, Union, get_args, get_origin

import msgspec

from holdfast.app.hints import JsonType, Unresolved, from_json, is_context, problems, type_hints
from holdfast.app.pydantic_types import Mismatch, PydanticType, pydantic_type
from holdfast.app.round_trip import difference
from holdfast.core import codec
from holdfast.core.model import Job
from holdfast.core.text import kind_of
from holdfast.errors import InvalidJob, ResultMismatch, UsageError
from holdfast.worker.child.handlers import Arguments

_EITHER_WAY = Parameter.POSITIONAL_OR_KEYWORD
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
        self.context: str | None = next(
            (name for name, hint in hints.items() if is_context(hint)), None
        )
        self.parameters: dict[str, Parameter] = {
            name: parameter
            for name, parameter in self._shape.parameters.items()
            if name != self.context
        }
        self._check_context()
        self.types: dict[str, JsonType] = {
            name: JsonType(f"parameter {name} of task {task}", _hint(parameter, hints.get(name)))
            for name, parameter in self.parameters.items()
        }
        self._has_models = any(each.model is not None for each in self.types.values())
        self.answer: Any = hints.get("return", Any)
        self._bindable = self._shape.replace(
            parameters=list(self.parameters.values()), return_annotation=Parameter.empty
        )
        every = self.parameters.values()
        self._has_optional = any(
            each.default is not Parameter.empty or each.kind in _GATHERED for each in every
        )
        self._required = frozenset(each.name for each in every if each.default is Parameter.empty)
        self._by_place = [each.name for each in every if each.kind is _EITHER_WAY]
        self._is_plain = all(each.kind in (_EITHER_WAY, Parameter.KEYWORD_ONLY) for each in every)
        self._rest = self._only(Parameter.VAR_KEYWORD)
        self._several = self._only(Parameter.VAR_POSITIONAL)

    def payload(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> bytes:
        """JSON of the arguments by name; InvalidJob names the argument that is wrong."""
        values = self._named(positional, named)
        try:
            payload = codec.encode(self._plain(values) if self._has_models else values)
            read = self._read(payload)
        except InvalidJob:
            self._check_each(values)
            raise
        except msgspec.ValidationError as error:
            raise self._refused(error) from None
        try:
            same = values == read
        except Exception:  # noqa: BLE001 (the types are the caller's)
            same = False
        if not same:
            for name, value in values.items():
                self._check_same(value, read[name], name)
        return payload

    def arguments(self, payload: bytes, content_type: str) -> Arguments:
        """The arguments for the function; UsageError if the payload does not fit."""
        if content_type != codec.JSON:
            payload, content_type = codec.open_body(payload, content_type)
            if not _is_json(content_type):
                return self._raw(payload, content_type)
        try:
            if payload[:1] == b"{":
                return self._placed(self._read(payload))
            given = codec.decode(payload) if payload else None
            if given is not None and not isinstance(given, list):
                raise InvalidJob(
                    f"the payload of task {self.task} is {kind_of(given)}: it must be an "
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
        """The stored form of a return value: bytes unchanged, anything else as JSON. It is not
        compared with the annotation: the work is done, and must not be done again for that."""
        if value is None or (isinstance(value, bytes) and self._is_raw):
            return value
        model = self._answer_model
        return codec.encode(value if model is None else model.dump(value))

    def read_result(self, job: Job) -> Any:
        """The result of a job as its return annotation says, or as in JSON without one.
        ResultMismatch if it does not fit."""
        stored = job.result
        if stored is not None and self.answer is not Any and self._is_raw:
            return stored
        try:
            return self._answer.read(b"null" if stored is None else stored)
        except (msgspec.DecodeError, Mismatch) as error:
            if self.answer is Any:
                return stored
            raise ResultMismatch(
                f"the result of job {job.id} does not fit the return annotation of task "
                f"{self.task}: {problems(error)}",
                job,
            ) from None

    @functools.cached_property
    def _is_raw(self) -> bool:
        """Whether a result of bytes is stored as it is."""
        return self.answer in (Any, bytes) or set(get_args(self.answer)) == {bytes, type(None)}

    @functools.cached_property
    def _answer(self) -> JsonType:
        """Only those who read results need it: a worker runs a task with any return annotation."""
        if isinstance(self.answer, Unresolved):
            raise UsageError(
                f"the return annotation {self.answer.text!r} of task {self.task} cannot be "
                "resolved: import it at run time, at the top of the module"
            )
        return JsonType(f"the result of task {self.task}", self.answer)

    @functools.cached_property
    def _answer_model(self) -> PydanticType | None:
        return pydantic_type(self.answer)

    def _named(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        if self.context is not None and self.context in named:
            raise InvalidJob(
                f"{self.context} of task {self.task} is passed by the worker: leave it out"
            )
        if self._is_plain:
            # Much faster than `bind`, which remains for the errors.
            values = dict(zip(self._by_place, positional, strict=False))
            if named:
                values |= named
                values = {name: values[name] for name in self.parameters if name in values}
            if len(values) == len(positional) + len(named) and self._required <= values.keys():
                return values
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
    def _decode(self) -> Callable[[bytes], Any]:
        fields: list[Any] = []
        for name, parameter in self.parameters.items():
            field = self.types[name].field
            if parameter.kind is Parameter.VAR_KEYWORD:
                continue
            if (
                parameter.kind is not Parameter.VAR_POSITIONAL
                and parameter.default is Parameter.empty
            ):
                fields.append((name, field))
            else:
                fields.append((name, field, msgspec.UNSET))
        kind = msgspec.defstruct(
            "Arguments", fields, forbid_unknown_fields=self._rest is None, kw_only=True
        )
        return msgspec.json.Decoder(kind, dec_hook=from_json).decode

    @functools.cached_property
    def _decode_rest(self) -> Callable[[bytes], Any]:
        return msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

    def _read(self, payload: bytes) -> dict[str, Any]:
        try:
            read = self._decode(payload)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise InvalidJob(f"the payload of task {self.task} cannot be read: {error}") from None
        values = msgspec.structs.asdict(read)
        if self._has_optional:
            values = {name: value for name, value in values.items() if value is not msgspec.UNSET}
        if self._has_models:
            for name, value in values.items():
                if self.types[name].model is not None:
                    values[name] = self._read_one(name, value)
        if self._rest is not None:
            for name, value in self._decode_rest(payload).items():
                if name not in read.__struct_fields__ and name not in self.parameters:
                    values[name] = self._read_one(name, value)
        return values

    def _read_one(self, name: str, raw: msgspec.Raw) -> Any:
        try:
            return self._type_of(name).read(bytes(raw))
        except (msgspec.ValidationError, Mismatch) as error:
            raise self._refused(error, f".{name}") from None

    def _type_of(self, name: str) -> JsonType:
        """The type of an argument; without a parameter of that name, of the `**` parameter."""
        return self.types[name if name in self.parameters else self._rest or name]

    def _plain(self, values: dict[str, Any]) -> dict[str, Any]:
        return {name: self._type_of(name).plain(value) for name, value in values.items()}

    def _placed(self, values: dict[str, Any]) -> Arguments:
        """Split values into positional and named arguments. Positional-only parameters go by
        position, with the defaults before them filled in."""
        if self._is_plain:
            return (), values
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
        if len(names) != 1 or self.types[names[0]].hint not in (bytes, Any):
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
                self._type_of(name).encode(value)
            except InvalidJob as error:
                raise InvalidJob(f"task {self.task}: {name}: {error}") from None

    def _check_same(self, given: Any, read: Any, path: str) -> None:
        """Raise unless the handler gets what was given."""
        found = difference(given, read, path)
        if found is None:
            return
        at, one, other = found
        was, becomes = type(one).__name__, type(other).__name__
        if was == becomes:
            why = (
                f"this {was} would arrive as another value: a part of it is left out of its JSON or"
                " changed by reading it"
            )
        else:
            why = (
                f"a value of type {was} would arrive as {becomes}: name {was} in the type hint, or"
                f" pass {becomes}"
            )
        raise InvalidJob(f"task {self.task}: {at}: {why}")

    def _refused(self, error: msgspec.DecodeError | Mismatch, path: str = "") -> InvalidJob:
        return InvalidJob(f"task {self.task}: {problems(error, path)}")

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
        self.answer: Any = _result_of_one(self.answer)
        element = next(iter(get_args(whole.hint)), Any)
        self._element = JsonType(f"parameter {self._name} of task {task}", element)

    def payload(self, positional: tuple[Any, ...], named: Mapping[str, Any]) -> bytes:
        if len(positional) != 1 or named:
            raise InvalidJob(f"task {self.task} takes one argument per job, an element of its list")
        given = positional[0]
        try:
            payload = self._element.encode(given)
        except InvalidJob as error:
            raise InvalidJob(f"task {self.task}: {self._name}[…]: {error}") from None
        [read], _ = self.arguments(payload, codec.JSON)
        self._check_same(given, read, f"{self._name}[…]")
        return payload

    def arguments(self, payload: bytes, content_type: str) -> Arguments:
        payload, content_type = codec.open_body(payload, content_type)
        if not _is_json(content_type):
            if self._element.hint not in (bytes, Any):
                raise InvalidJob(
                    f"task {self.task} takes JSON, but the job has content type {content_type}"
                )
            return (payload,), {}
        try:
            return (self._element.read(payload or b"null"),), {}
        except (msgspec.ValidationError, Mismatch) as error:
            raise self._refused(error, f"{self._name}[…]") from None
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise InvalidJob(f"the payload of task {self.task} cannot be read: {error}") from None


def _hint(parameter: Parameter, hint: Any) -> Any:
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return types.GenericAlias(list, (Any if hint is None else hint,))
    return hint


def _result_of_one(whole: Any) -> Any:
    """The type of a job's result, from the return annotation of a batch task: an element of the
    list, which may be an exception for the failure of that job."""
    if isinstance(whole, Unresolved):
        return whole
    lists = [each for each in _members(whole) if each is not type(None)]
    element = next(iter(get_args(lists[0])), Any) if len(lists) == 1 else Any
    if len(_members(element)) == 1:
        return element
    kept = [each for each in _members(element) if not _is_exception(each)]
    return functools.reduce(operator.or_, kept) if kept else Any


def _members(hint: Any) -> tuple[Any, ...]:
    union = get_origin(hint) in (types.UnionType, Union)
    return get_args(hint) if union else (hint,)


def _is_exception(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseException)


def _is_json(content_type: str) -> bool:
    return content_type == codec.JSON or content_type.partition(";")[0].rstrip() == codec.JSON
