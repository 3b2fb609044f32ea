"""Where a pipeline's checkpoint lies, and what it was made for.

Beside Spark's own files each checkpoint has `headrace.json`: the declaration that it belongs to and
an id.  A computation whose state would not fit is refused by name before Spark fails on it.  The
id is part of what the sink recognises repeats by, so that a checkpoint that is made anew under an
old name writes as somebody else.  All goes through Hadoop's file systems, as Spark's files do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.core.clock import SystemRandom
from headrace.core.errors import CheckpointIncompatible
from headrace.pipelines.declaration import Declaration, plan_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARKER: Final = "headrace.json"
MARKER_BEFORE: Final = "headrace.json.new"
ID_BYTES: Final = 8


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

    def mark(self, marker: Marker) -> None:
        """Write what it is for; a crash leaves the old one or the new one."""
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
        planned, done = self._newest("offsets"), self._newest("commits")
        return planned is not None and planned != done

    def _newest(self, name: str) -> int | None:
        if not self._files.exists(self._at(name)):
            return None
        names = [file.getPath().getName() for file in self._files.listStatus(self._at(name))]
        return max((int(name) for name in names if name.isdigit()), default=None)


def fit(
    found: Marker | None, pipeline: str, declaration: Declaration, stateful: bool
) -> tuple[Marker, Declaration | None]:
    """The marker to have, and what has to finish its batch first; refuses what does not fit.

    A computation without state may be another one from the next batch on.  A batch that was
    planned is finished as it was, because a part of it may be written.
    """
    if found is None:
        return Marker(SystemRandom().bytes(ID_BYTES).hex(), declaration, stateful), None
    marker = Marker(found.id, declaration, stateful)
    before = found.declaration
    if plan_of(before) == plan_of(declaration):
        return marker, None
    reads = [(s.topic, s.schema) for s in before.sources]
    same_sources = reads == [(s.topic, s.schema) for s in declaration.sources]
    if found.stateful or stateful or not same_sources:
        raise CheckpointIncompatible(
            f"the checkpoint {declaration.checkpoint!r} of {pipeline!r} was made by another "
            "computation, whose state does not fit",
            fix="declare the pipeline with another name as `checkpoint`: it then begins anew, "
            "with what its sources still hold",
        )
    return marker, before
