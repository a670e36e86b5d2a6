"""The balance of one sub-topology's cells over the members: even, with few moves,
siblings together. A cell is the part of a partition that one slot takes.

    quotas      which members take one cell more, if cells do not divide evenly: those that hold more already
    slot counts which partitions have one slot more: those where it keeps the most in place
    keep        a member keeps the cells that it holds completely, then takes those without a holder of which it has the
                freshest standby
    fill        the rest goes where the member has a standby or a store already, then where it fits as a whole
    cell        which cell of the partition: the one of which the member holds the most

Invariant: every cell has one member and every member its quota. A member keeps the
cells that it holds completely, up to its quota.
Relies on: `slots` (the cells), `claims` (what members hold), `assignor` (checks the
result).
Turned down: a maximum matching (cubic; the leader decides on the thread that sends its
heartbeats), keeping members in the order of the hash space (when the first of n leaves,
all others shift: half of everything moves; by overlap it is a quarter).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import combinations
from typing import TypeAlias

from coopstreams.group.claims import common, merge
from coopstreams.group.slots import Cell, Layout
from coopstreams.topology.keys import MAX_HASH, KeyRange

_PASSES = 8
"""The most passes of exchanging cells; they settle in two or three."""

_CALM = 4
"""How much a partition in which no task would change is preferred to one that is cut
anew: by a sixteenth (2^-4).
"""

_Held = Mapping[str, Mapping[int, list[KeyRange]]]
_NONE: _Held = {}
Stale: TypeAlias = Mapping[str, Mapping[int, int]]
"""How far the standbys of a member and partition are behind, as `Warmth.lags` says."""
FRESH: Stale = {}
UNKNOWN = 64
"""Further behind than any standby that was measured."""


def balance(
    layout: Layout,
    held: _Held,
    load: Mapping[str, Fraction],
    standbys: _Held = _NONE,
    stale: Stale = FRESH,
) -> dict[str, list[Cell]]:
    """Return the cells of each member.

    Shape: `held` by member and partition, disjoint ranges; `standbys` likewise, but
    those of several members overlap; `stale`: how far they are behind. `load` is each
    member's share of the other sub-topologies: of equal members, the one with less
    takes more.
    """
    really = held
    held = _inherited(held, standbys, stale) if standbys else held
    counts = _slot_counts(layout, held)
    cells = {
        partition: layout.cells(partition, slots)
        for partition, slots in enumerate(counts)
    }
    kept = _complete(cells, held)
    quota = _quotas(layout, held, kept, load)
    awaited = _awaited(cells, kept, quota, standbys)
    balanced = {
        member: _best_kept(
            kept.get(member, []),
            really.get(member, {}),
            quota[member],
            awaited,
        )
        for member in layout.threads
    }
    free = _free(cells, balanced)
    # Who gave a cell up has its rows, too; but it has its share already.
    held = _together(held, standbys) if standbys else held
    missing = {member: quota[member] - len(mine) for member, mine in balanced.items()}
    wants = _fill(missing, free, balanced, held, counts, stale)
    for partition, shares in wants.items():
        owners, _ = _match(free[partition], shares, held)
        for cell, member in owners.items():
            if member is not None:
                balanced[member].append(cell)
    for mine in balanced.values():
        mine.sort(key=lambda cell: (cell.partition, cell.key_range))
    return balanced


def _free(
    cells: Mapping[int, list[Cell]],
    balanced: Mapping[str, list[Cell]],
) -> dict[int, list[Cell]]:
    """Return the cells of each partition that no member has been given yet."""
    taken = {cell for mine in balanced.values() for cell in mine}
    return {
        partition: [cell for cell in row if cell not in taken]
        for partition, row in cells.items()
    }


def _slot_counts(layout: Layout, held: _Held) -> list[int]:
    """Return the slot count of each partition. A partition has one slot more if that
    keeps the most hashes with the members that hold them (`held`).
    """
    counts = [layout.fewest] * layout.partitions
    if layout.larger:
        gain = {
            p: _stays(layout, held, p, layout.fewest + 1)
            - _stays(layout, held, p, layout.fewest)
            for p in range(layout.partitions)
        }
        for partition in sorted(gain, key=lambda p: (-gain[p], p))[: layout.larger]:
            counts[partition] += 1
    return counts


def _stays(
    layout: Layout,
    held: _Held,
    partition: int,
    slots: int,
) -> int:
    """Return how many hashes could stay with their members if the partition had this
    many slots.

    A partition in which no task would change counts a little more (`_CALM`).
    """
    limits = {
        member: layout.quotas[member][1] for member in held if partition in held[member]
    }
    stays = _match(layout.cells(partition, slots), limits, held)[1]
    return stays + (stays >> _CALM if stays > MAX_HASH else 0)


def _overlaps(
    cells: Iterable[Cell],
    members: Iterable[str],
    held: _Held,
) -> Iterator[tuple[int, Cell, str]]:
    """Yield (the hashes of the cell that the member holds, the cell, the member) for
    each pair in which the member holds some.
    """
    members = tuple(members)
    for cell in cells:
        for member in members:
            overlap = common(
                held.get(member, {}).get(cell.partition, ()),
                cell.key_range,
            )
            if overlap:
                yield overlap, cell, member


def _complete(cells: Mapping[int, list[Cell]], held: _Held) -> dict[str, list[Cell]]:
    """Return the cells of whose key ranges each member holds everything already."""
    return {
        member: [
            cell
            for partition in sorted(mine)
            for cell in cells.get(partition, ())
            if any(key_range.covers(cell.key_range) for key_range in mine[partition])
        ]
        for member, mine in held.items()
    }


def _quotas(
    layout: Layout,
    held: _Held,
    kept: Mapping[str, list[Cell]],
    load: Mapping[str, Fraction],
) -> dict[str, int]:
    """Return how many cells each member takes.

    The cells left over by an even division go to members that can keep them, then to
    those that hold most, then to the idle.
    """
    quota = {member: low for member, (low, _) in layout.quotas.items()}
    odd = layout.slots - sum(quota.values())

    def order(member: str) -> tuple[int, int, Fraction, str]:
        ranges = [
            key_range for mine in held.get(member, {}).values() for key_range in mine
        ]
        stays = min(len(kept.get(member, ())), layout.quotas[member][1])
        return (
            -stays,
            -sum(key_range.end - key_range.start + 1 for key_range in ranges),
            load[member] / layout.threads[member],
            member,
        )

    for member in sorted(
        (m for m, (low, high) in layout.quotas.items() if high > low), key=order
    )[:odd]:
        quota[member] += 1
    return quota


def _inherited(held: _Held, standbys: _Held, stale: Stale) -> _Held:
    """Return what members hold, where each range that no member holds counts as held by
    a member with a standby of it.

    Of several such members, the one that is least behind; of equals, the one that holds
    least so far.
    """
    taken: dict[int, list[KeyRange]] = {}
    for mine in held.values():
        for partition, ranges in mine.items():
            taken.setdefault(partition, []).extend(ranges)
    found = {
        member: dict(held.get(member, {})) for member in sorted({*held, *standbys})
    }
    size = {
        member: sum(_size(ranges) for ranges in mine.values())
        for member, mine in found.items()
    }
    partitions = {partition for mine in standbys.values() for partition in mine}
    for partition in sorted(partitions):
        for member in sorted(
            standbys,
            key=lambda member: (
                _staleness(stale, member, partition),
                size[member],
                member,
            ),
        ):
            free = [
                left
                for key_range in standbys[member].get(partition, ())
                for left in key_range.minus(taken.get(partition, ()))
            ]
            if free:
                mine = found[member]
                mine[partition] = merge([*mine.get(partition, ()), *free])
                taken.setdefault(partition, []).extend(free)
                size[member] += _size(free)
    return found


def _together(held: _Held, standbys: _Held) -> _Held:
    """Return the ranges of which each member has rows: held, or as standbys."""
    return {
        member: {
            partition: merge(
                [
                    *held.get(member, {}).get(partition, ()),
                    *standbys.get(member, {}).get(partition, ()),
                ]
            )
            for partition in {*held.get(member, ()), *standbys.get(member, ())}
        }
        for member in sorted({*held, *standbys})
    }


def _staleness(stale: Stale, member: str, partition: int) -> int:
    return stale.get(member, {}).get(partition, UNKNOWN)


def _awaited(
    cells: Mapping[int, list[Cell]],
    kept: Mapping[str, list[Cell]],
    quota: Mapping[str, int],
    standbys: _Held,
) -> frozenset[Cell]:
    """Return the cells that overlap a standby of a member that gets more cells than it
    keeps. `cells`: of each partition; `kept`: those that members keep; `quota`: how
    many each gets.
    """
    takers = [
        member for member in standbys if len(kept.get(member, ())) < quota[member]
    ]
    return frozenset(
        cell
        for row in cells.values()
        for overlap, cell, _ in _overlaps(row, takers, standbys)
        if overlap
    )


def _size(ranges: Iterable[KeyRange]) -> int:
    return sum(key_range.end - key_range.start + 1 for key_range in ranges)


def _best_kept(
    cells: list[Cell],
    really: Mapping[int, list[KeyRange]],
    quota: int,
    awaited: Collection[Cell],
) -> list[Cell]:
    """Return the cells that a member keeps, at most its quota: first those that it
    really holds, of these those of partitions where it has the most cells, and of these
    the ones that others have not prepared to take.
    """

    def is_held(cell: Cell) -> bool:
        return any(
            key_range.covers(cell.key_range)
            for key_range in really.get(cell.partition, ())
        )

    together = Counter(cell.partition for cell in cells)
    return sorted(
        cells,
        key=lambda cell: (
            not is_held(cell),
            -together[cell.partition],
            cell in awaited,
            cell.partition,
            cell.key_range,
        ),
    )[:quota]


def _fill(
    need: dict[str, int],
    free: Mapping[int, list[Cell]],
    balanced: Mapping[str, list[Cell]],
    held: _Held,
    counts: list[int],
    stale: Stale,
) -> dict[int, dict[str, int]]:
    """Return how many free cells of each partition each member gets.

    `need`: how many each member lacks, used up here. `free`: by partition. `balanced`:
    the cells that members have already. `held`: the ranges of which they have rows;
    `stale`: how old these are. `counts`: the slots of each partition.
    """
    wants: dict[int, dict[str, int]] = {partition: {} for partition in free}
    room = {partition: len(cells) for partition, cells in free.items() if cells}

    def take(member: str, partition: int) -> None:
        share = min(need[member], room.get(partition, 0))
        if share:
            wants[partition][member] = wants[partition].get(member, 0) + share
            need[member] -= share
            room[partition] -= share
            if not room[partition]:
                del room[partition]

    for _, _, _, partition, member in sorted(
        _stores(need, free, balanced, held, stale)
    ):
        take(member, partition)
    for member in sorted(need, key=lambda m: (-need[m], m)):
        while need[member]:
            take(member, _best_room(need[member], room, counts))
    return wants


def _stores(
    need: Mapping[str, int],
    free: Mapping[int, list[Cell]],
    balanced: Mapping[str, list[Cell]],
    held: _Held,
    stale: Stale,
) -> Iterator[tuple[bool, int, int, int, str]]:
    """Yield, for each partition with free cells of which a member keeps cells or has
    rows: (whether it keeps none there, minus the free hashes whose rows it has, how far
    its standbys are behind, partition, member). The least is served first.
    """
    for member in need:
        stays = {cell.partition for cell in balanced[member]}
        for partition in stays | set(held.get(member, ())):
            if partition in free:
                overlap = sum(
                    n for n, _, _ in _overlaps(free[partition], [member], held)
                )
                behind = _staleness(stale, member, partition)
                yield partition not in stays, -overlap, behind, partition, member


def _best_room(
    need: int,
    room: Mapping[int, int],
    counts: list[int],
) -> int:
    """Return the partition in which a member takes its next cells.

    Preferred is a partition with room for all missing cells, the fullest of them. A
    single missing cell goes round robin.
    """

    def order(partition: int) -> tuple[bool, int, int]:
        if need == 1:
            return False, counts[partition] - room[partition], partition
        fits = room[partition] >= need
        return not fits, room[partition] if fits else -room[partition], partition

    return min(room, key=order)


def _match(
    cells: list[Cell],
    limits: Mapping[str, int],
    held: _Held,
) -> tuple[dict[Cell, str | None], int]:
    """Return the owner of each cell, and how many hashes keep the owner that they have.

    A cell gets None if every member has as many cells as its limit. The largest
    overlaps are matched first, the other cells in order. Then pairs of owners swap
    while that keeps more hashes in place.
    """
    overlaps = {
        (cell, member): overlap
        for overlap, cell, member in _overlaps(cells, limits, held)
    }
    owners = _owners(cells, limits, overlaps)
    for _ in range(_PASSES):
        swaps = sum(_swap(a, b, owners, overlaps) for a, b in combinations(cells, 2))
        if not swaps:
            break
    return owners, sum(
        overlaps.get((cell, member or ""), 0) for cell, member in owners.items()
    )


def _owners(
    cells: list[Cell],
    limits: Mapping[str, int],
    overlaps: Mapping[tuple[Cell, str], int],
) -> dict[Cell, str | None]:
    """Return an owner for each cell: the largest overlaps first, then the rest in
    order. A cell gets None if all members are at their limit.
    """
    owners: dict[Cell, str | None] = dict.fromkeys(cells)
    left = dict(limits)
    largest_first = sorted(
        overlaps.items(),
        key=lambda x: (-x[1], x[0][0].key_range, x[0][1]),
    )
    for (cell, member), _ in largest_first:
        if owners[cell] is None and left[member]:
            left[member] -= 1
            owners[cell] = member
    rest = (
        member
        for member in sorted(left, key=lambda m: (-left[m], m))
        for _ in range(left[member])
    )
    unowned = [cell for cell in cells if owners[cell] is None]
    owners.update(zip(unowned, rest, strict=False))
    return owners


def _swap(
    a: Cell,
    b: Cell,
    owners: dict[Cell, str | None],
    overlaps: Mapping[tuple[Cell, str], int],
) -> bool:
    """Swap the owners of two cells if more hashes stay in place; return whether they
    were swapped. `overlaps`: how many hashes of a cell a member holds.
    """
    mine = owners[a] or ""
    other = owners[b] or ""
    stays = overlaps.get((a, mine), 0) + overlaps.get((b, other), 0)
    would = overlaps.get((a, other), 0) + overlaps.get((b, mine), 0)
    if would > stays:
        owners[a], owners[b] = owners[b], owners[a]
    return would > stays
