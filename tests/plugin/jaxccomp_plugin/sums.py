"""Algorithms."""

import jaxccomp


@jaxccomp.register_algorithm("plugin_line", "bcast", skip=1)
def line(b, skip):
    """Sends chunks along a line of ranks, in steps of ``skip`` ranks."""
    order = [(b.root + i * skip) % b.ranks for i in range(b.ranks)]
    place = order.index(b.rank)  # skip and the number of ranks are coprime
    for chunk in b.lanes(b.output()):
        if place == 0:
            values, ready = b.pack(b.input(chunk))
        else:
            values = b.receive_buffer(chunk)
            ready = [b.recv(order[place - 1], b.lane, values)]
        if place + 1 < b.ranks:
            b.send(order[place + 1], b.lane, values, ready)
        b.unpack(chunk, values, ready)


@jaxccomp.register_algorithm("plugin_sum", "allreduce")
def total(b):
    """Sends chunks to rank 0, which merges and returns them, encoded in both directions."""
    for chunk in b.lanes(b.output()):
        if b.ranks == 1:
            b.copy(chunk, b.input(chunk))
        elif b.rank == 0:
            came = [b.code(chunk) if b.encoded else b.scratch(chunk) for _ in range(1, b.ranks)]
            tasks = [b.recv(i + 1, 2 * b.lane, slot) for i, slot in enumerate(came)]
            merged = b.scratch(chunk)
            ready = b.merge(merged, [b.input(chunk), *came], final=True, after=tasks)
            values, encoded = b.pack(merged, ready)
            if b.feedback:
                b.residual(b.residuals(chunk), merged, values, encoded, final=True)
            for peer in range(1, b.ranks):
                b.send(peer, 2 * b.lane + 1, values, encoded)
            b.unpack(chunk, values, encoded)
        else:
            values, ready = b.pack(b.input(chunk))
            sent = [b.send(0, 2 * b.lane, values, ready)]
            if b.feedback:
                sent.append(b.residual(b.residuals(chunk), b.input(chunk), values, ready))
            place = b.receive_buffer(chunk)
            came = b.recv(0, 2 * b.lane + 1, place, sent)
            b.unpack(chunk, place, [came, *sent])


@jaxccomp.register_algorithm("plugin_grouped", "bcast")
def grouped(b):
    """Sends to all ranks at once: an empty message, then both halves in one."""
    halves = [b.part(b.output(), i, 2) for i in (0, 1)]
    halves = [half for half in halves if half.end > half.begin]
    nothing = b.part(b.output(), 0, b.block_bytes + 1)
    if not halves:
        return
    if b.rank != b.root:
        first = b.recv(b.root, 0, nothing)
        b.recv(b.root, 1, halves, after=first)
        return
    for peer in set(range(b.ranks)) - {b.root}:
        first = b.send(peer, 0, b.input(nothing))
        b.send(peer, 1, [b.input(half) for half in halves], after=first)
    b.copy(b.output(), b.input())


@jaxccomp.register_algorithm("plugin_pairs", "alltoall")
def pairs(b):
    """Sends each row to its rank, uncut."""
    own = b.input(block=b.rank)
    if b.block_bytes == 0:
        return
    b.copy(b.output(block=b.rank), own)
    for distance in range(1, b.ranks):
        b.lane = distance - 1
        to, source = (b.rank + distance) % b.ranks, (b.rank - distance) % b.ranks
        values, ready = b.pack(b.input(block=to))
        b.send(to, 0, values, ready)
        place = b.receive_buffer(b.output(block=source))
        b.unpack(b.output(block=source), place, b.recv(source, 0, place))
