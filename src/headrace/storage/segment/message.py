"""A record batch as the parts of its Arrow message, to be written from where they lie.

Arrow's `serialize` copies every column into one run of bytes, which is then copied once more by the
write.  A stream of Arrow hands the same bytes out piece by piece: small ones by value, the buffers
of columns as they are.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from headrace.storage.fs import Buffer

# A mark, and the length of what follows before the buffers.
_LEAD = struct.Struct("<II")


class MessageParts:
    """Turns record batches of one schema into the parts of their messages."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = _Parts()
        self._stream = pa.ipc.new_stream(self._sink, schema)  # type: ignore[arg-type]
        # The first batch brings the message of the schema with it, which is not asked for here.
        self._stream.write_batch(_nothing(schema))

    def of(self, batch: pa.RecordBatch) -> tuple[bytes, list[Buffer]]:
        """The head of the message of this batch, and its buffers: joined, what `serialize` returns.

        >>> batch = pa.record_batch({"data": pa.array([b"one", b"three"])})
        >>> head, buffers = MessageParts(batch.schema).of(batch)
        >>> b"".join([head, *buffers]) == batch.serialize().to_pybytes()
        True
        """
        self._sink.parts = []
        self._stream.write_batch(batch)
        parts, self._sink.parts = self._sink.parts, []
        head, taken = b"", 0
        while len(head) < _LEAD.size or len(head) < _LEAD.size + _LEAD.unpack_from(head)[1]:
            head += parts[taken]
            taken += 1
        assert len(head) == _LEAD.size + _LEAD.unpack_from(head)[1], len(head)
        return head, parts[taken:]


class _Parts:
    """A file that keeps what is written to it, as it is."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[Buffer] = []

    def write(self, data: Buffer) -> int:
        part = memoryview(data)
        self.parts.append(part)
        return len(part)

    def tell(self) -> int:
        return sum(map(len, self.parts))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema=schema)
