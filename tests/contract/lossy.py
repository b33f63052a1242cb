"""The contract of lossy codecs: errors stay within the codec's bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import jaxccomp as jcc
from contract.exact import coded
from contract.operations import Operation
from contract.places import Place


def lossy_codecs() -> list[str]:
    """A spec of each lossy codec, and of the kinds that options and stages make of them."""
    specs = {
        "topk": "topk:density=0.05",
        "dgc": "dgc:density=0.05",
        "randomk": "randomk:density=0.1",
        "int8": "int8:rounding=stochastic",
    }
    names = [name for name, info in jcc.codecs.table().items() if not info.lossless]
    return [specs.get(name, name) for name in names] + ["int4|lossless", "bf16:rounding=stochastic"]


def check_bounds(place: Place, operations: Sequence[Operation], codec: str) -> None:
    """Checks every linear operation that is not `alike` another, all in one program."""
    coded(place, codec)
    rng = np.random.default_rng(3)
    rows = {row.name: row for row in operations if row.linear and not row.alike}
    inputs = {
        name: rng.standard_normal((place.n, *row.shape(place.n))).astype(np.float32)
        for name, row in rows.items()
    }

    def program(inputs: Any, flag: Any) -> Any:
        return {name: row.call(place, inputs[name]) for name, row in rows.items()}

    results = place.run(program, inputs)
    bound = jcc.codecs.error_bound(codec, "float32")
    part = bound.relative + bound.block
    wrong = []
    for name, row in rows.items():
        x = inputs[name]
        greatest = np.abs(x).reshape(place.n, -1).max(axis=1)
        # Moved values are encoded once; terms of sums and partial sums at most n times.
        most = part * greatest.max() if row.moves else (1 + part) * part * place.n * greatest.sum()
        error = np.abs(results[name] - row.expected(x)[place.seen]).max()
        if not error <= most + bound.absolute * place.n:
            wrong.append(f"{name}: off by {error}, may be {most}")
        if row.same and not (results[name] == results[name][:1]).all():
            wrong.append(f"{name}: not the same on all ranks")
    assert not wrong, "\n".join(wrong)


def check_cotangents(place: Place) -> None:
    """Checks ``cotangent_codec`` in first and second derivatives: None sends cotangents raw."""
    n = place.n
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal((n, n, 40)).astype(np.float32) for _ in range(2))
    ring = [(rank + 1) % n for rank in range(n)]
    back = [(rank - 1) % n for rank in range(n)]
    operations = {
        "alltoall": jcc.alltoall,
        "sendrecv": lambda x, **how: jcc.sendrecv(x, ring, back, **how),
        "reduce_scatter": jcc.reduce_scatter,
    }
    options = {
        "raw": {},
        "coded": {"codec": "int8"},
        "exact back": {"codec": "int8", "cotangent_codec": None},
        "cast back": {"codec": "int8", "cotangent_codec": "bf16"},
        "only back": {"cotangent_codec": "int8"},
    }

    def program(inputs: Any, flag: Any) -> Any:
        x, w = inputs

        def derivatives(operation: Any, how: Any) -> Any:
            y, transposed = jax.vjp(lambda x: operation(x, **place.how, **how), x)
            w_like = w.reshape(-1)[: y.size].reshape(y.shape)
            (ct,), again = jax.vjp(transposed, w_like)
            return {"y": y, "ct": ct, "again": again((x,))[0]}

        return {
            (name, kind): derivatives(operation, how)
            for name, operation in operations.items()
            for kind, how in options.items()
        }

    results = place.run(lambda *given: _named(program(*given)), (x, w))
    same = np.array_equal
    for name in operations:
        of = {kind: results[f"{name}, {kind}"] for kind in options}
        raw = of["raw"]
        assert same(of["coded"]["y"], of["exact back"]["y"]), name
        assert same(of["exact back"]["ct"], raw["ct"]), name
        assert same(of["exact back"]["again"], raw["again"]), name
        assert same(of["only back"]["y"], raw["y"]), name
        assert same(of["only back"]["ct"], of["coded"]["ct"]), name
        if n > 1:
            for coding in ("ct", "again"):
                assert not same(of["coded"][coding], raw[coding]), name
                assert not same(of["only back"][coding], raw[coding]), name
            assert not same(of["exact back"]["y"], raw["y"]), name
            assert not same(of["cast back"]["ct"], of["coded"]["ct"]), name
            np.testing.assert_allclose(of["cast back"]["ct"], raw["ct"], rtol=2**-8)
            assert not same(of["cast back"]["ct"], raw["ct"]), name


def _named(results: dict[tuple[str, str], Any]) -> dict[str, Any]:
    return {", ".join(key): result for key, result in results.items()}
