"""The exchange of ranks when they join, with threads of one process as ranks."""

import threading

import patience

from jaxccomp import errors


def on_ranks(ranks, agree):
    """Returns the result of ``agree(rank, share)`` on each rank, or the text of its error."""
    barrier, table = threading.Barrier(ranks), {}
    found = [None] * ranks

    def run(rank):
        def share(row):
            table[rank] = tuple(row)
            barrier.wait(patience.seconds(10))
            got = [table[r] for r in range(ranks)]
            barrier.wait(patience.seconds(10))
            return got

        try:
            found[rank] = agree(rank, share)
        except errors.InitializationError as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(patience.seconds(20))
    return found
