"""The directory of topics: which there are, by name and by id, and which id comes next.

Only this file adds topics and takes them out.  A name belongs to one topic at a time, and is free
again before a deleted topic is forgotten; an id is given once.  When topics come and go is decided
by `lifecycle.py`, and by recovery.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.core.errors import InvalidRequest
from headrace.engine.topics.names import NameIndex
from headrace.engine.topics.topic import Topic
from headrace.storage.epochs import epoch_of


class TopicDirectory:
    """The topics of one engine."""

    def __init__(self) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self.next_id = 1
        self.generation = 0
        self._names = NameIndex()  # the keys of `by_name`, once recovery is done
        # Forks by the id of a parent that recovery has not met yet.
        self._waiting_forks: dict[int, list[Topic]] = {}

    def find(self, name: str) -> Topic | None:
        """The topic of this name, live or being created."""
        if not isinstance(name, str):
            raise InvalidRequest(f"topic name is {name!r}", fix="send a string")
        return self.by_name.get(name)

    def names_after(self, name: str, prefix: str = "") -> Iterator[str]:
        """The names beyond `name` that start with `prefix`, in order.

        No topic may come or go while it is iterated.
        """
        return self._names.after(name, prefix)

    def epoch_of(self, topic_id: int) -> int:
        """The epoch of a topic that gets this id."""
        return epoch_of(self.generation, topic_id)

    # While the engine runs

    def add(self, topic: Topic) -> None:
        """Add a new topic under the next id, or a later one."""
        assert topic.id >= self.next_id and topic.name not in self.by_name, topic.name
        self.next_id = topic.id + 1
        self.by_id[topic.id] = topic
        self.by_name[topic.name] = topic
        self._names.add(topic.name)
        if topic.parent_id:
            topic.link(self.by_id[topic.parent_id])

    def release_name(self, topic: Topic) -> None:
        """Free the name of a topic, if it is the topic's still."""
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]
            self._names.remove(topic.name)

    def take_name_back(self, topic: Topic) -> bool:
        """Give a topic its name back; False: another topic has it."""
        if self.by_name.setdefault(topic.name, topic) is not topic:
            return False
        self._names.add(topic.name)
        return True

    def remove(self, topic: Topic) -> None:
        """Take a topic out; its name was released, or another topic has it."""
        assert self.by_name.get(topic.name) is not topic, topic.name
        self.by_id.pop(topic.id, None)
        if topic.parent is not None:
            topic.unlink()
        elif topic.parent_id in self._waiting_forks:
            self._waiting_forks[topic.parent_id].remove(topic)

    # While it recovers

    def restore_ids(self, next_id: int, generation: int) -> None:
        """Go on from where a snapshot was."""
        self.next_id, self.generation = next_id, generation

    def restore(self, topic: Topic) -> None:
        """Add a topic that there was before; of two with one name the newer one has it."""
        self.next_id = max(self.next_id, topic.id + 1)
        self.by_id[topic.id] = topic
        named = self.by_name.get(topic.name)
        if named is None or named.id < topic.id:
            self.by_name[topic.name] = topic
        for fork in self._waiting_forks.pop(topic.id, ()):
            fork.link(topic)
        if topic.parent_id:
            parent = self.by_id.get(topic.parent_id)
            if parent is None:
                self._waiting_forks.setdefault(topic.parent_id, []).append(topic)
            else:
                topic.link(parent)

    def index_names(self) -> None:
        """Put the names in order, once all topics are restored."""
        self._names.build(self.by_name)
