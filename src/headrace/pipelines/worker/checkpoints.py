"""Where a pipeline's checkpoint lies, and what it was made for.

Beside Spark's own files each checkpoint has `headrace.json`: the declaration that it belongs to and
an id.  A computation whose state would not fit is refused by name before Spark fails on it.  The
id is part of what the sink recognises repeats by, so that a checkpoint that is made again under an
old name writes as somebody else.  All goes through Hadoop's file systems, as Spark's files do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.api.pipelines import Declaration
from headrace.core.clock import SystemRandom
from headrace.core.errors import CheckpointIncompatible, NotReady
from headrace.pipelines.registry.declaration import plan_of, reads_of
from headrace.spark.reading.offsets import Offset, decode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARKER: Final = "headrace.json"
MARKER_BEFORE: Final = "headrace.json.new"
ID_BYTES: Final = 8
# Spark's own directories: what was planned, and what is done.
OFFSETS: Final = "offsets"
COMMITS: Final = "commits"


class Marker(msgspec.Struct, frozen=True):
    """What `headrace.json` holds."""

    id: str
    declaration: Declaration
    stateful: bool


def path_of(root: str, pipeline: str, checkpoint: str) -> str:
    """The directory of a checkpoint; a colon would be read as the end of a scheme.

    >>> path_of("/data/pipelines/", "eu:orders", "1")
    '/data/pipelines/eu~orders/1'
    """
    return "/".join((root.rstrip("/"), pipeline.replace(":", "~"), checkpoint.replace(":", "~")))


class Checkpoint:
    """One checkpoint directory, on any file system that Spark knows."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self.path = path
        java: Any = session._jvm
        self._java = java
        self._path_class = java.org.apache.hadoop.fs.Path
        configuration = session._jsparkSession.sessionState().newHadoopConf()
        self._files = self._path_class(path).getFileSystem(configuration)

    def _at(self, name: str) -> Any:
        return self._path_class(f"{self.path}/{name}")

    def marker(self) -> Marker | None:
        """What the checkpoint was made for; None: it is new."""
        # After a crash between the two steps of `mark` only the second name is there.
        for name in (MARKER, MARKER_BEFORE):
            if self._files.exists(self._at(name)):
                try:
                    return msgspec.json.decode(self._read(name), type=Marker)
                except msgspec.MsgspecError:
                    if name == MARKER:
                        raise
        return None

    def _read(self, name: str) -> str:
        stream = self._files.open(self._at(name))
        try:
            return str(self._java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def mark(self, marker: Marker, found: Marker | None) -> None:
        """Write what it is for, instead of what was found; a crash leaves one of the two."""
        if self.marker() != found:
            # Ours slept, and another worker has begun: its id is in what it has written.
            raise NotReady(
                f"another worker has begun with the checkpoint {self.path}", fix="try again"
            )
        half = self._at(MARKER_BEFORE)
        stream = self._files.create(half, True)
        try:
            stream.write(bytearray(msgspec.json.encode(marker)))
        finally:
            stream.close()
        self._files.delete(self._at(MARKER), False)
        self._files.rename(half, self._at(MARKER))

    def unfinished(self) -> bool:
        """Whether a batch was planned and not finished."""
        planned, done = self._newest(OFFSETS), self._newest(COMMITS)
        return planned is not None and planned != done

    def places(self) -> dict[str, int]:
        """Up to which seq each topic is read by the batches that are done.

        Before the first one that is where the query began.
        """
        done = self._newest(COMMITS)
        planned = self._newest(OFFSETS) if done is None else done
        if planned is None:
            return {}
        found: dict[str, int] = {}
        for offset in offsets_of(self._read(f"{OFFSETS}/{planned}")):
            places = offset.topics if done is not None else offset.came_from or {}
            for topic, place in places.items():
                found[topic] = min(place.seq, found.get(topic, place.seq))
        return found

    def _newest(self, name: str) -> int | None:
        if not self._files.exists(self._at(name)):
            return None
        names = [file.getPath().getName() for file in self._files.listStatus(self._at(name))]
        return max((int(name) for name in names if name.isdigit()), default=None)


def offsets_of(text: str) -> list[Offset]:
    """The offsets of a batch as Spark's log has them: a version, what is about all, then each.

    >>> offsets_of('v1\\n{"batchWatermarkMs":0}\\n{"topics":{"a":{"epoch":1,"seq":5}}}')[0].topics
    {'a': TopicOffset(epoch=1, seq=5)}
    """
    lines = text.splitlines()[2:]
    return [decode(msgspec.json.decode(line)) for line in lines if line.startswith("{")]


def fit(
    found: Marker | None, pipeline: str, declaration: Declaration, stateful: bool
) -> tuple[Marker, Declaration | None]:
    """The marker to have, and what has to finish its batch first; refuses what does not fit.

    A computation without state may be another one from any batch on: of a batch that was begun
    either nothing is written, or all of it will be.  Where it is written to is part of that, so
    that a batch is finished with the destination that it was begun with.
    """
    if found is None:
        return Marker(SystemRandom().bytes(ID_BYTES).hex(), declaration, stateful), None
    marker = Marker(found.id, declaration, stateful)
    before = found.declaration
    same_sources = reads_of(before) == reads_of(declaration)
    if plan_of(before) != plan_of(declaration) and (found.stateful or stateful or not same_sources):
        raise CheckpointIncompatible(
            f"the checkpoint {declaration.checkpoint!r} of {pipeline!r} was made by another "
            "computation, whose state does not fit",
            fix="declare the pipeline with another name as `checkpoint`: it then begins anew, "
            "with what its sources still hold",
        )
    return marker, None if before.dest == declaration.dest else before
