"""What a crash of the simulated disk leaves: which names, which bytes, torn, lost or spoilt.

Only this file decides that; `diskmodel.py` knows what was durable and what was pending.
"""

from __future__ import annotations

from typing import Final

from headrace.testing.diskmodel import (
    DIRECTORY,
    MODES,
    PAGE_BYTES,
    SECTOR_BYTES,
    Content,
    Dice,
    Mode,
    Node,
    Op,
    State,
    assign_names,
)

# A long write is cut into at most this many parts, and spoilt in at most this many places.
PARTS_PER_WRITE_MAX: Final = 64
SPOTS_PER_WRITE_MAX: Final = 4
WRITES_SPOILT_MAX: Final = 16


def crash(state: State, mode: Mode, dice: Dice, *, powersafe: bool) -> State:
    """The state a power loss leaves, all of it durable.  `state` is not changed."""
    assert mode in MODES, mode
    cut = _cut(state, dice) if mode == "prefix" and dice.coin() else None
    names = _surviving_names(state, mode, cut, dice)
    after = State()
    after.names = names
    after.names_durable = dict(names)
    after.inode_next = state.inode_next
    for inode in sorted(set(names.values())):
        if inode != DIRECTORY:
            content = _surviving_content(state.nodes[inode], mode, cut, dice, powersafe)
            after.nodes[inode] = Node(content)
    return after


def _cut(state: State, dice: Dice) -> int:
    """One moment for the whole disk: what was pending before it survives, the rest does not."""
    serials = [serial for serial, _ in state.names_pending]
    for node in state.nodes.values():
        serials.extend(serial for serial, _ in node.pending)
    serials.append(state.serial + 1)
    serials.sort()
    return serials[dice.below(len(serials))]


def _surviving_names(state: State, mode: Mode, cut: int | None, dice: Dice) -> dict[str, int]:
    if mode == "all":
        return dict(state.names)
    names = dict(state.names_durable)
    pending = state.names_pending
    if mode == "none" or not pending:
        return names
    if cut is not None:
        pending = [change for change in pending if change[0] < cut]
    elif mode == "prefix" or (mode == "torn" and dice.coin()):
        pending = pending[: dice.below(len(pending) + 1)]
    elif mode in ("subset", "garbage") and dice.below(4):
        pending = [change for change in pending if dice.coin()]
    for _, changes in pending:
        assign_names(names, changes)
    return names


def _surviving_content(
    node: Node, mode: Mode, cut: int | None, dice: Dice, powersafe: bool
) -> Content:
    if mode == "all":
        return node.live.fork()
    content = node.durable.fork()
    ops = [op for serial, op in node.pending if cut is None or serial < cut]
    if mode == "none" or not ops:
        return content
    if mode == "prefix":
        kept = len(ops) if cut is not None else dice.below(len(ops) + 1)
        for op in ops[:kept]:
            content.apply(op)
    elif mode == "subset":
        for op in ops:
            _keep_some(content, op, dice)
        _resize(content, node, dice)
    elif mode == "torn":
        _tear(content, node, ops, dice, powersafe)
    else:
        assert mode == "garbage", mode
        every = dice.coin()
        for op in ops:
            if every or dice.coin():
                content.apply(op)
        _resize(content, node, dice)
        _spoil_some(content, node, ops, dice, powersafe)
    return content


def _keep_some(content: Content, op: Op, dice: Dice) -> None:
    """Drop the change, keep it, or keep some of the sectors of the write."""
    choice = dice.below(4)
    if choice == 0:
        return
    if choice == 1 or op.kind == "truncate":
        content.apply(op)
        return
    first = op.offset // SECTOR_BYTES
    count = (op.end - 1) // SECTOR_BYTES - first + 1
    step = -(-count // PARTS_PER_WRITE_MAX)
    for sector in range(first, first + count, step):
        if dice.coin():
            start = max(op.offset, sector * SECTOR_BYTES)
            content.put(op, start, min(op.end, (sector + step) * SECTOR_BYTES))


def _resize(content: Content, node: Node, dice: Dice) -> None:
    """An extension may survive without its bytes, and the bytes without the extension."""
    low = min(node.durable.size, node.live.size, content.size)
    high = max(content.size, node.live.size)
    choice = dice.below(6)
    if choice == 0:
        content.truncate(low)
    elif choice == 1:
        content.truncate(high)
    elif choice == 2:
        size = low + dice.below(high - low + 1)
        content.truncate(max(low, size // SECTOR_BYTES * SECTOR_BYTES))


def _tear(content: Content, node: Node, ops: list[Op], dice: Dice, powersafe: bool) -> None:
    """Changes in order up to one, and of the last write of those only what lies before a cut."""
    ops = ops if dice.coin() else ops[: 1 + dice.below(len(ops))]
    while ops and ops[-1].kind == "truncate" and any(op.kind == "write" for op in ops):
        ops = ops[:-1]
    *whole, op = ops
    for earlier in whole:
        content.apply(earlier)
    if op.kind == "truncate":
        content.apply(op)
        return
    unit = SECTOR_BYTES if dice.coin() else PAGE_BYTES
    first = op.offset // unit
    boundary = first + dice.below((op.end - 1) // unit - first + 1)
    cut = max(op.offset, boundary * unit)
    content.put(op, op.offset, cut)
    _resize(content, node, dice)
    if dice.coin():
        start = cut // PAGE_BYTES * PAGE_BYTES
        _spoil(content, node, op, start, start + PAGE_BYTES, dice, powersafe)


def _spoil_some(content: Content, node: Node, ops: list[Op], dice: Dice, powersafe: bool) -> None:
    writes = [op for op in ops if op.kind == "write"][-WRITES_SPOILT_MAX:]
    for op in writes:
        unit = SECTOR_BYTES if dice.coin() else PAGE_BYTES
        first = op.offset // unit
        count = (op.end - 1) // unit - first + 1
        for _ in range(dice.below(min(count, SPOTS_PER_WRITE_MAX) + 1)):
            start = (first + dice.below(count)) * unit
            _spoil(content, node, op, start, start + unit, dice, powersafe)


def _spoil(
    content: Content, node: Node, op: Op, start: int, stop: int, dice: Dice, powersafe: bool
) -> None:
    """Zeros, noise or old bytes in [start, stop), or a mixture by sector; never a longer file."""
    if powersafe:
        start, stop = max(start, op.offset), min(stop, op.end)
    stop = min(stop, content.size)
    choice = dice.below(4)
    step = SECTOR_BYTES if choice == 3 else PAGE_BYTES
    for position in range(start, stop, step):
        length = min(step, stop - position)
        kind = choice if choice < 3 else dice.below(4)
        if kind == 0:
            content.write(position, bytes(length))
        elif kind == 1:
            content.write(position, dice.bytes(length))
        elif kind == 2:
            old = node.durable.read(position, length)
            content.write(position, old.ljust(length, b"\0"))
