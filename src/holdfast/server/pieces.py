"""Large bodies, read piece by piece, so that nobody else waits long for one of them.

First a body is only cut up, which makes no values and stops at the first element that is too many:
a list that is read as a whole is bounded only when all of it is there, in sixty times its size.
Then each piece is read as its type says, and others have their turn in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, NamedTuple, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import astuple, fields

from holdfast.core import limits
from holdfast.server.refusals import TooLarge

LARGE: Final = 64 * 1024
"""What is not larger is read at once."""
_PIECE_MAX = 512 * 1024
"""Of what cannot be cut up, such as the labels of a job; a payload may be as large as a body."""
_TURN = 256 * 1024
_TURN_PIECES = 100
_ELEMENTS_MAX = limits.PARENTS_MAX
"""Of a list that does not say how many it takes."""
_WHOLE = frozenset((Raw, str, bytes))
_LISTS: Final[dict[Any, Callable[[list[Any]], Any]]] = {list: list, Sequence: list, tuple: tuple}


class Turn:
    """How much may be looked at before others have their turn: a hundred things, or fewer that are
    large."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _TURN

    def is_over(self, size: int) -> bool:
        """With one more thing of that size a new one begins."""
        self._left -= max(size, _TURN // _TURN_PIECES)
        if self._left >= 0:
            return False
        self._left = _TURN
        return True


class Pieces:
    """Reads the bodies of one type of struct, in JSON or in MessagePack."""

    def __init__(self, wanted: type[msgspec.Struct], codec: Any) -> None:
        self._wanted = wanted
        self._decoder = cache(codec.Decoder)
        self._turn = Turn()

    async def read(self, body: bytes) -> Any:
        """As the decoder of the type would, with its errors; and TooLarge for a part of it."""
        return await self._struct(Raw(body), self._wanted)

    async def _struct(self, raw: Raw, wanted: type[msgspec.Struct]) -> Any:
        cut = self._decoder(_cutter(wanted)).decode(raw)
        values: dict[str, Any] = {}
        for part, piece in zip(_parts_of(wanted), astuple(cut), strict=True):
            if isinstance(piece, Raw):
                values[part.name] = await self._value(piece, part.wanted, part.place)
            elif isinstance(piece, msgspec.Struct):
                values[part.name] = await self._elements(part, astuple(piece))
            elif piece is None:
                values[part.name] = None
        return wanted(**values)

    async def _elements(self, part: _Part, pieces: tuple[Raw | UnsetType, ...]) -> Any:
        found = [
            await self._value(piece, part.element, f"{part.place}[{at}]")
            for at, piece in enumerate(pieces)
            if isinstance(piece, Raw)
        ]
        if len(found) < part.least:
            raise msgspec.ValidationError(
                f"Expected `array` of length >= {part.least} - at `${part.place}`"
            )
        return found if part.make is None else part.make(found)

    async def _value(self, raw: Raw, wanted: Any, place: str) -> Any:
        size = len(memoryview(raw))
        if self._turn.is_over(size):
            await asyncio.sleep(0)
        try:
            if size > LARGE:
                kinds, _ = _kinds_of(wanted)
                struct = self._chosen(raw, kinds)
                if struct is not None:
                    return await self._struct(raw, struct)
                if size > _PIECE_MAX and not _WHOLE.issuperset(kinds):
                    raise TooLarge(f"${place} has {size} bytes, at most {_PIECE_MAX} are read")
            return self._decoder(wanted).decode(raw)
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(_placed(str(error), place)) from None

    def _chosen(self, raw: Raw, kinds: tuple[Any, ...]) -> type[msgspec.Struct] | None:
        """Which struct this is, where it can be nothing else."""
        if not all(map(is_struct, kinds)):
            return None
        by_tag: dict[Any, type[msgspec.Struct]]
        by_tag = {each.__struct_config__.tag: each for each in kinds}
        if len(by_tag) == 1:
            return by_tag.popitem()[1]
        # What is no tag of theirs is told by the decoder of them all.
        return by_tag.get(self._decoder(_Tagged).decode(raw).type)


def is_struct(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)


class _Tagged(msgspec.Struct):
    type: str


class _Part(NamedTuple):
    """A field of a struct. A list of `element` is cut up, and made of what was found."""

    name: str
    place: str
    wanted: Any
    element: Any = None
    make: Callable[[list[Any]], Any] | None = None
    least: int = 0
    most: int = 0


@cache
def _parts_of(wanted: type[msgspec.Struct]) -> tuple[_Part, ...]:
    in_list = wanted.__struct_config__.array_like
    return tuple(
        _part_of(field.name, f"[{at}]" if in_list else f".{field.encode_name}", field.type)
        for at, field in enumerate(fields(wanted))
    )


def _part_of(name: str, place: str, wanted: Any) -> _Part:
    kinds, meta = _kinds_of(wanted)
    make = _LISTS.get(get_origin(kinds[0])) if len(kinds) == 1 else None
    if make is None or (make is tuple and get_args(kinds[0])[1:] != (...,)):
        return _Part(name, place, wanted)
    least = 0 if meta is None else meta.min_length or 0
    most = None if meta is None else meta.max_length
    element = get_args(kinds[0])[0]
    return _Part(name, place, wanted, element, make, least, most or _ELEMENTS_MAX)


@cache
def _cutter(wanted: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """With the same fields, of which nothing is read, and lists with no more than they may have."""
    config = wanted.__struct_config__
    cuts: list[Any] = []
    for field, part in zip(fields(wanted), _parts_of(wanted), strict=True):
        cut: Any = Raw if part.make is None else _list_of(part.most)
        if part.make is not None and NoneType in get_args(field.type):
            cut |= None
        cuts.append((field.name, cut) if field.required else (field.name, cut | UnsetType, UNSET))
    return msgspec.defstruct(
        wanted.__name__,
        cuts,
        rename={field.name: field.encode_name for field in fields(wanted)},
        array_like=config.array_like,
        forbid_unknown_fields=config.forbid_unknown_fields,
        tag=config.tag,
        tag_field=config.tag_field,
        kw_only=not config.array_like,
    )


@cache
def _list_of(most: int) -> Any:
    """A struct that is written as a list is read no further than its last field."""
    cuts = [(f"_{at}", Raw | UnsetType, UNSET) for at in range(most)]
    return msgspec.defstruct("Elements", cuts, array_like=True, forbid_unknown_fields=True)


def _kinds_of(wanted: Any) -> tuple[tuple[Any, ...], msgspec.Meta | None]:
    """What it may be, beside nothing; and the bounds of what can be only one thing."""
    meta = None
    if get_origin(wanted) is Annotated:
        wanted, *metas = get_args(wanted)
        meta = next((each for each in metas if isinstance(each, msgspec.Meta)), None)
    if get_origin(wanted) not in (Union, UnionType):
        return (wanted,), meta
    found = [_kinds_of(each) for each in get_args(wanted) if each not in (NoneType, UnsetType)]
    kinds = tuple(kind for some, _ in found for kind in some)
    return kinds, found[0][1] if len(found) == 1 else None


def _placed(text: str, place: str) -> str:
    """As the decoder tells it of the whole."""
    said, at, inside = text.rpartition(" - at `$")
    return f"{said}{at}{place}{inside}" if at else f"{text} - at `${place}`"
