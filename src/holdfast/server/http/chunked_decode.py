"""Decodes large bodies in chunks, so that other requests are not blocked for long.

The first pass only splits the body: it creates no values and stops at the first element beyond the
bound. A list decoded as a whole would be checked only once all of it is in memory, at sixty times
its size. The second pass decodes each chunk by its type and yields to the event loop in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import astuple, fields

from holdfast.core import bounds
from holdfast.server.http.problems import TooLarge

LARGE: Final = 64 * 1024
"""Smaller bodies are decoded at once."""
_CHUNK_MAX = 512 * 1024
"""The bound on a value that cannot be split, such as labels; a payload may be as large as a
body.
"""
_BUDGET_BYTES = 256 * 1024
_BUDGET_ITEMS = 100
_ELEMENTS_MAX = bounds.PARENTS_MAX
"""The bound on a list whose type has none."""
_UNBOUNDED = frozenset((Raw, str, bytes))
_LISTS: Final[dict[Any, Callable[[list[Any]], Any]]] = {list: list, Sequence: list, tuple: tuple}


class YieldBudget:
    """The work to do before yielding to the event loop: a hundred items, fewer if large."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _BUDGET_BYTES

    def spend(self, size: int) -> bool:
        """Charge an item. True if the budget was used up and a new one has begun: yield now."""
        self._left -= max(size, _BUDGET_BYTES // _BUDGET_ITEMS)
        if self._left >= 0:
            return False
        self._left = _BUDGET_BYTES
        return True


@cache
def decoder_of(codec: Any, wanted: Any) -> Any:
    """The decoder of a type; making one takes longer than decoding a request."""
    return codec.Decoder(wanted)


class ChunkedDecoder:
    """Decodes bodies of one struct type, in JSON or MessagePack."""

    def __init__(self, wanted: type[msgspec.Struct], codec: Any) -> None:
        self._wanted = wanted
        self._decoder = partial(decoder_of, codec)
        self._budget = YieldBudget()

    async def decode(self, body: bytes) -> Any:
        """The body as msgspec would decode it, with the same errors; TooLarge for a part of it."""
        return await self._struct(Raw(body), self._wanted)

    async def _struct(self, raw: Raw, wanted: type[msgspec.Struct]) -> Any:
        split = self._decoder(_splitter(wanted)).decode(raw)
        values: dict[str, Any] = {}
        for field, chunk in zip(_fields_of(wanted), astuple(split), strict=True):
            if isinstance(chunk, Raw):
                values[field.name] = await self._value(chunk, field.wanted, field.path)
            elif isinstance(chunk, msgspec.Struct):
                values[field.name] = await self._elements(field, astuple(chunk))
            elif chunk is None:
                values[field.name] = None
        return wanted(**values)

    async def _elements(self, field: _Field, chunks: tuple[Raw | UnsetType, ...]) -> Any:
        found = [
            await self._value(chunk, field.element, f"{field.path}[{at}]")
            for at, chunk in enumerate(chunks)
            if isinstance(chunk, Raw)
        ]
        if len(found) < field.length_min:
            raise msgspec.ValidationError(
                f"Expected `array` of length >= {field.length_min} - at `${field.path}`"
            )
        return found if field.make is None else field.make(found)

    async def _value(self, raw: Raw, wanted: Any, path: str) -> Any:
        size = len(memoryview(raw))
        if self._budget.spend(size):
            await asyncio.sleep(0)
        try:
            if size > LARGE:
                members, _ = _members_of(wanted)
                struct = self._struct_type(raw, members)
                if struct is not None:
                    return await self._struct(raw, struct)
                if size > _CHUNK_MAX and not _UNBOUNDED.issuperset(members):
                    raise TooLarge(f"${path} has {size} bytes, at most {_CHUNK_MAX} are allowed")
            return self._decoder(wanted).decode(raw)
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(_with_path(str(error), path)) from None

    def _struct_type(self, raw: Raw, members: tuple[Any, ...]) -> type[msgspec.Struct] | None:
        """The struct type of a value, if its type allows only structs."""
        if not all(map(is_struct, members)):
            return None
        by_tag: dict[Any, type[msgspec.Struct]]
        by_tag = {each.__struct_config__.tag: each for each in members}
        if len(by_tag) == 1:
            return by_tag.popitem()[1]
        # For an unknown tag the decoder of the union raises the error.
        return by_tag.get(self._decoder(_Tagged).decode(raw).type)


def is_struct(wanted: Any) -> bool:
    """True for a msgspec struct type."""
    return isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)


class _Tagged(msgspec.Struct):
    type: str


class _Field(NamedTuple):
    """A field of a struct. A list is split into chunks of type `element`, and rebuilt by `make`."""

    name: str
    path: str
    wanted: Any
    element: Any = None
    make: Callable[[list[Any]], Any] | None = None
    length_min: int = 0
    length_max: int = 0


@cache
def _fields_of(wanted: type[msgspec.Struct]) -> tuple[_Field, ...]:
    array_like = wanted.__struct_config__.array_like
    return tuple(
        _field_of(field.name, f"[{at}]" if array_like else f".{field.encode_name}", field.type)
        for at, field in enumerate(fields(wanted))
    )


def _field_of(name: str, path: str, wanted: Any) -> _Field:
    members, meta = _members_of(wanted)
    make = _LISTS.get(get_origin(members[0])) if len(members) == 1 else None
    if make is None or (make is tuple and get_args(members[0])[1:] != (...,)):
        return _Field(name, path, wanted)
    length_min = 0 if meta is None else meta.min_length or 0
    length_max = None if meta is None else meta.max_length
    element = get_args(members[0])[0]
    return _Field(name, path, wanted, element, make, length_min, length_max or _ELEMENTS_MAX)


@cache
def _splitter(wanted: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """A struct with the same fields, undecoded, and with lists up to their bounds."""
    config = wanted.__struct_config__
    split_fields: list[Any] = []
    for info, field in zip(fields(wanted), _fields_of(wanted), strict=True):
        split: Any = Raw if field.make is None else _list_of(field.length_max)
        if field.make is not None and NoneType in get_args(info.type):
            split |= None
        split_fields.append(
            (info.name, split) if info.required else (info.name, split | UnsetType, UNSET)
        )
    return msgspec.defstruct(
        wanted.__name__,
        split_fields,
        rename={field.name: field.encode_name for field in fields(wanted)},
        array_like=config.array_like,
        forbid_unknown_fields=config.forbid_unknown_fields,
        tag=config.tag,
        tag_field=config.tag_field,
        kw_only=not config.array_like,
    )


@cache
def _list_of(length_max: int) -> Any:
    """An array-like struct: its decoder stops after its last field, at `length_max` elements."""
    elements = [(f"_{at}", Raw | UnsetType, UNSET) for at in range(length_max)]
    return msgspec.defstruct("Elements", elements, array_like=True, forbid_unknown_fields=True)


def _members_of(wanted: Any) -> tuple[tuple[Any, ...], msgspec.Meta | None]:
    """The members of a union without None; and the bounds, if there is only one member."""
    meta = None
    if get_origin(wanted) is Annotated:
        wanted, *metas = get_args(wanted)
        meta = next((each for each in metas if isinstance(each, msgspec.Meta)), None)
    if get_origin(wanted) not in (Union, UnionType):
        return (wanted,), meta
    found = [_members_of(each) for each in get_args(wanted) if each not in (NoneType, UnsetType)]
    members = tuple(member for some, _ in found for member in some)
    return members, found[0][1] if len(found) == 1 else None


def _with_path(text: str, path: str) -> str:
    """The error of a chunk with its path in the whole body, as msgspec writes it."""
    message, at, inner = text.rpartition(" - at `$")
    return f"{message}{at}{path}{inner}" if at else f"{text} - at `${path}`"
