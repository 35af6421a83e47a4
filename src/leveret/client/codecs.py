"""Bodies to and from Python values: JSON, msgpack, text and bytes by content type, and registered formats.

This module owns the meaning of content types and of handlers' annotations. Messages whose body does not
convert are left to the listener. Bodies come from the network, so the rule is: any bytes with any properties
give a value or a `ConversionError`, and decompressing takes no more memory than `max_decompressed_bytes`.

    content type                                   Python
    application/json, …+json                       dict, list, str, number, bool, None
    application/msgpack, x-msgpack, vnd.msgpack    the same, and bytes and datetime
    text/…                                         str
    application/octet-stream, none, any other      bytes

`content_encoding` is a compression (gzip, deflate), or a charset, as in Spring AMQP and kombu, or both.
"""

from __future__ import annotations

import gzip
import inspect
import math
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from leveret.client.errors import ConversionError

MAX_DECOMPRESSED_BYTES: Final = 64 << 20

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
TEXT: Final = "text/plain"
BYTES: Final = "application/octet-stream"

_MSGPACK_TYPES: Final = frozenset((MSGPACK, "application/x-msgpack", "application/vnd.msgpack"))
_UTF8: Final = "utf-8"
_COMPRESSIONS: Final = frozenset(("gzip", "x-gzip", "deflate"))
_NO_ENCODINGS: Final = frozenset(("", "identity", "binary", "8bit"))
_USUAL_ENCODINGS: Final = frozenset((None, "", "utf-8", "UTF-8"))
# Only these are looked up: Python remembers every name that it is asked for, without a bound, and some of its
# codecs (punycode, unicode_escape) are slow or are no charsets.
_CHARSETS: Final = frozenset(
    (
        *("utf-8", "utf8", "utf-16", "utf-16le", "utf-16be", "utf-32", "utf-32le", "utf-32be"),
        *("us-ascii", "ascii", "latin-1", "latin1", "koi8-r", "koi8-u"),
        *(f"iso-8859-{part}" for part in range(1, 17) if part != 12),
        *(f"windows-{page}" for page in range(1250, 1259)),
        *(f"cp{page}" for page in range(1250, 1259)),
        *("gb2312", "gbk", "gb18030", "big5", "shift-jis", "euc-jp", "iso-2022-jp", "euc-kr"),
    )
)
_CAUSE_CHARACTERS_MAX: Final = 1_000
"""Length at which causes are cut: a model lists every error of a body."""

_T = TypeVar("_T")
Encode: TypeAlias = Callable[[Any], bytes]
Decode: TypeAlias = Callable[[bytes], Any]
Converter: TypeAlias = Callable[[bytes, str | None, str | None], Any]
"""`value = convert(body, content_type, content_encoding)`."""


class Encoded(NamedTuple):
    """A body, and the two properties that describe it."""

    body: bytes
    content_type: str
    content_encoding: str | None = None


# --- content types and encodings -------------------------------------------------------------------------


class _Form(NamedTuple):
    """The parts of content type and content encoding."""

    media_type: str
    charset: str
    compression: str | None

    @classmethod
    def parse(cls, content_type: str | None, content_encoding: str | None) -> _Form:
        """
        >>> _Form.parse("Text/Plain; charset=Latin1", "gzip")
        _Form(media_type='text/plain', charset='latin1', compression='gzip')
        """
        media_type, *parameters = (content_type or "").lower().split(";")
        charset, compression = _UTF8, None
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip() == "charset":
                charset = _known_charset(value.strip(" \t\"'"))
        # Spring AMQP writes gzip:UTF-8.
        for word in (content_encoding or "").lower().replace(":", ",").split(","):
            encoding = word.strip()
            if encoding in _COMPRESSIONS and compression is None:
                compression = encoding
            elif encoding not in _NO_ENCODINGS:
                charset = _known_charset(encoding)
        return cls(media_type.strip(), charset, compression)

    @property
    def is_json(self) -> bool:
        return self.media_type == JSON or self.media_type.endswith("+json")

    @property
    def is_msgpack(self) -> bool:
        return self.media_type in _MSGPACK_TYPES

    @property
    def is_text(self) -> bool:
        return self.media_type.startswith("text/")


_USUAL_FORMS: Final = {name: _Form(name, _UTF8, None) for name in (JSON, MSGPACK, TEXT)}


def _known_charset(name: str) -> str:
    charset = name.replace("_", "-")
    if charset not in _CHARSETS:
        raise ConversionError(f"the charset {name!r} is not known")
    return charset


def _compressed(body: bytes, compression: str) -> bytes:
    return zlib.compress(body) if compression == "deflate" else gzip.compress(body, mtime=0)


def _decompressed(body: bytes, compression: str, max_bytes: int) -> bytes:
    if compression == "deflate":
        plain = _inflated(body, max_bytes + 1)
    else:
        plain = gzip.GzipFile(fileobj=BytesIO(body)).read(max_bytes + 1)
    if len(plain) > max_bytes:
        raise ConversionError(
            f"a body of {len(body)} bytes is more than {max_bytes} when decompressed",
            hint="the message is rejected; to allow larger bodies, use Codecs(max_decompressed_bytes=...)",
        )
    return plain


def _inflated(body: bytes, max_bytes: int) -> bytes:
    """Decompress with zlib's header (RFC 1950) or without it (RFC 1951), as some clients send it."""
    has_header = len(body) >= 2 and body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    stream = zlib.decompressobj(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)
    plain = stream.decompress(body, max_bytes)
    if len(plain) < max_bytes and not stream.eof:
        raise EOFError("the compressed data is cut off")
    return plain


# --- pydantic models, which are recognised by a method, so that pydantic is not imported -----------------


def _is_model(annotation: Any) -> bool:
    return inspect.isclass(annotation) and hasattr(annotation, "model_validate_json")


def _json_of(value: Any) -> Any:
    """Encode a value of a type that msgspec does not know. Called at any depth."""
    if _is_model(type(value)):
        return msgspec.Raw(value.model_dump_json().encode())
    raise NotImplementedError(f"the type {type(value).__name__} is not known")


def _msgpack_of(value: Any) -> Any:
    if _is_model(type(value)):
        return value.model_dump()
    raise NotImplementedError(f"the type {type(value).__name__} is not known")


def _model_of(annotation: Any, value: Any) -> Any:
    if _is_model(annotation):
        return annotation.model_validate(value)
    if inspect.isclass(annotation) and isinstance(value, annotation):
        return value
    raise TypeError(f"expected {annotation.__name__}, got {type(value).__name__}")


# --- values of a type ------------------------------------------------------------------------------------


class _Makers(NamedTuple):
    """How values of one annotation are made: of JSON, msgpack, a value, or a body without a content type."""

    of_json: Decode
    of_msgpack: Decode
    of_value: Callable[[Any], Any]
    of_untyped: Decode
    failure: str


def _same(value: _T) -> _T:
    return value


_encode_json: Final = msgspec.json.Encoder(enc_hook=_json_of).encode
_encode_msgpack: Final = msgspec.msgpack.Encoder(enc_hook=_msgpack_of).encode
_ANY: Final = _Makers(
    of_json=msgspec.json.Decoder().decode,
    of_msgpack=msgspec.msgpack.Decoder().decode,
    of_value=_same,
    of_untyped=_same,
    failure="the body is not what its content type says",
)


def _json(value: Any) -> bytes:
    """Return the value as JSON. msgspec writes NaN and infinity as null, so a body with a null is checked."""
    body = _encode_json(value)
    if b"null" in body:
        _check_finite(msgspec.to_builtins(value, enc_hook=_msgpack_of, builtin_types=(msgspec.Raw,)), "")
    return body


def _check_finite(value: Any, place: str) -> None:
    """Raise for the first NaN or infinity, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConversionError(
            f"JSON has no number {value} (at {place or 'the top level'})",
            hint="publish None or a text instead, or use application/msgpack",
        )
    if isinstance(value, dict):
        for name, item in value.items():
            _check_finite(item, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_finite(item, f"{place}[{index}]")


def _makers_of_model(model: Any) -> _Makers:
    return _Makers(
        of_json=model.model_validate_json,
        of_msgpack=lambda body: model.model_validate(_ANY.of_msgpack(body)),
        of_value=model.model_validate,
        of_untyped=model.model_validate_json,
        failure=f"the body is no {model.__name__}",
    )


def _makers(annotation: Any) -> _Makers:
    if _is_model(annotation):
        return _makers_of_model(annotation)

    def of_value(value: Any) -> Any:
        # A text may be converted to a number or a date.
        is_text = isinstance(value, str)
        return msgspec.convert(value, annotation, strict=not is_text, dec_hook=_model_of)

    try:
        of_json = msgspec.json.Decoder(annotation, dec_hook=_model_of).decode
        of_msgpack = msgspec.msgpack.Decoder(annotation, dec_hook=_model_of).decode
    except TypeError as error:
        raise TypeError(f"no body can be converted to {annotation}: {error}") from error
    name = annotation.__name__ if inspect.isclass(annotation) else str(annotation)
    return _Makers(of_json, of_msgpack, of_value, of_untyped=of_json, failure=f"the body is no {name}")


def _guarded(work: Callable[[Any], _T], value: Any, failure: str) -> _T:
    """Convert a value, and turn every exception into a `ConversionError`.

    Parsers, models and registered codecs may raise anything. A message that can't be converted must not look
    like a failure of its handler, or it would be tried again for ever.
    """
    try:
        return work(value)
    except (ConversionError, MemoryError):
        raise
    except Exception as error:
        raise ConversionError(f"{failure}: {str(error)[:_CAUSE_CHARACTERS_MAX]}") from error


# --- the codecs ------------------------------------------------------------------------------------------


class Codecs:
    """Reads and writes the bodies of an application: JSON, msgpack, text, bytes and registered formats.

    >>> codecs = Codecs()
    >>> codecs.encode({"id": 7})
    Encoded(body=b'{"id":7}', content_type='application/json', content_encoding=None)
    >>> codecs.register("application/x-hex", encode=lambda data: data.hex().encode(), decode=bytes.fromhex)
    """

    def __init__(self, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES) -> None:
        self._max_bytes = max_decompressed_bytes
        self._own: dict[str, tuple[Encode, Decode]] = {}
        self._decode = self._converter(_ANY)

    def register(self, content_type: str, encode: Encode, decode: Decode) -> None:
        """Add a format, or replace a known one. To be called before converters are made.

        Exceptions of both functions become a `ConversionError`.
        """
        self._own[content_type.partition(";")[0].strip().lower()] = encode, decode
        self._decode = self._converter(_ANY)

    def encode(
        self, value: Any, content_type: str | None = None, *, content_encoding: str | None = None
    ) -> Encoded:
        """Encode a value by its content type. Bytes are not changed, whatever the content type is.

        A `str` is text, unless the content type is another: as JSON it becomes a JSON string, in quotes.
        NaN and infinity are refused as JSON, with their place in the value.
        """
        if isinstance(value, bytes | bytearray | memoryview):
            return Encoded(bytes(value), content_type or BYTES, content_encoding)
        if content_type is None:
            content_type = TEXT if isinstance(value, str) else JSON
        form = _USUAL_FORMS.get(content_type) if content_encoding is None else None
        form = form or _Form.parse(content_type, content_encoding)
        failure = f"a value of type {type(value).__name__} can't be written as {form.media_type}"
        body = _guarded(self._writer(value, form), value, failure)
        if form.compression is not None:
            body = _compressed(body, form.compression)
        elif content_type == TEXT and content_encoding is None:
            # Spring AMQP and kombu write and read text in this way.
            content_encoding = _UTF8
        return Encoded(body, content_type, content_encoding)

    def _writer(self, value: Any, form: _Form) -> Encode:
        if form.media_type in self._own:
            return self._own[form.media_type][0]
        if form.is_json:
            return _json
        if form.is_msgpack:
            return _encode_msgpack
        if isinstance(value, str):
            return lambda text: str.encode(text, form.charset)
        raise ConversionError(
            f"a value of type {type(value).__name__} can't be written as {form.media_type}",
            hint="give bytes, or add the format with Codecs.register",
        )

    def decode(self, body: bytes, content_type: str | None, content_encoding: str | None = None) -> Any:
        """Return the value of a body by its content type. Without a content type it is the bytes."""
        return self._decode(body, content_type, content_encoding)

    def convert(
        self, body: bytes, content_type: str | None, annotation: Any, content_encoding: str | None = None
    ) -> Any:
        """Convert a single body, as a `converter` does."""
        return self.converter(annotation)(body, content_type, content_encoding)

    def converter(self, annotation: Any = Any) -> Converter:
        """Return a function that converts bodies to the type of a handler's parameter.

        `bytes` gives the unchanged body, and `str` its text, whatever the content type. No annotation, or
        `Any`, gives the result of `decode`. All other types (dataclasses, TypedDicts, pydantic models,
        `list[...]`, `int`, `UUID` …) are made from the decoded value, and checked. A body without a content
        type is read as JSON. `TypeError`: no body can be converted to this annotation.
        """
        if annotation is bytes or annotation is bytearray or annotation is memoryview:
            return lambda body, content_type, content_encoding: annotation(body)
        if annotation is str:
            return self._text
        if annotation is Any or annotation is object or annotation is inspect.Parameter.empty:
            return self._decode
        return self._converter(_makers(annotation))

    def _converter(self, makers: _Makers) -> Converter:
        decoders: dict[str | None, Decode] = {
            None: makers.of_untyped,
            JSON: makers.of_json,
            MSGPACK: makers.of_msgpack,
            TEXT: lambda body: makers.of_value(body.decode()),
            BYTES: makers.of_value,
        }
        for content_type in self._own:
            decoders.pop(content_type, None)

        def convert(body: bytes, content_type: str | None, content_encoding: str | None) -> Any:
            if content_encoding in _USUAL_ENCODINGS and (decode := decoders.get(content_type)) is not None:
                return _guarded(decode, body, makers.failure)
            form = _Form.parse(content_type, content_encoding)
            return _guarded(lambda data: self._made(data, form, makers), body, makers.failure)

        return convert

    def _made(self, body: bytes, form: _Form, makers: _Makers) -> Any:
        plain = self._plain(body, form)
        if form.media_type in self._own:
            return makers.of_value(self._own[form.media_type][1](plain))
        if not form.media_type:
            return makers.of_untyped(plain)
        if form.is_json:
            # JSON is in UTF-8 (RFC 8259, 8.1), unless the properties name another charset.
            return makers.of_json(plain if form.charset == _UTF8 else plain.decode(form.charset).encode())
        if form.is_msgpack:
            return makers.of_msgpack(plain)
        return makers.of_value(plain.decode(form.charset) if form.is_text else plain)

    def _plain(self, body: bytes, form: _Form) -> bytes:
        return body if form.compression is None else _decompressed(body, form.compression, self._max_bytes)

    def _text(self, body: bytes, content_type: str | None, content_encoding: str | None) -> str:
        form = _Form.parse(content_type, content_encoding)
        failure = f"the body is no text in {form.charset}"
        return _guarded(lambda data: self._plain(data, form).decode(form.charset), body, failure)
