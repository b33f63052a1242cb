"""`jaxccomp.optim` without its optional dependency, and its checks of arguments."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import jaxccomp as jcc
from jaxccomp import optim
from jaxccomp._native import engine


def test_without_optax_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(ImportError, match="pip install optax") as caught:
        jcc.optim.allreduce_gradients()
    assert isinstance(caught.value, jcc.errors.MissingPackageError)


def test_optax_is_loaded_only_when_it_is_used():
    program = "import sys, jaxccomp; sys.exit('optax' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", program]).returncode == 0


def make_train_step(**options):
    return optim.train_step(lambda params: params, None, **options)


MAKERS = {
    "allreduce_gradients": optim.allreduce_gradients,
    "with_feedback": functools.partial(optim.allreduce_gradients, error_feedback=True),
    "train_step": make_train_step,
    "powersgd": optim.powersgd,
    "dgc": optim.dgc,
    "ecq": optim.ecq,
    "adacomp": optim.adacomp,
    "onebit_adam": functools.partial(optim.onebit_adam, 1e-3, 10),
    "diloco": optim.diloco,
    "local_sgd": optim.local_sgd,
}
MISTAKES = [
    ({"codecs": "int8"}, "unknown keyword argument .*'codecs'.* Did you mean 'codec'"),
    ({"axis": "data"}, "unknown keyword argument .*'axis'; valid: .*'axis_name'"),
    ({"backend": "navite"}, "unknown backend 'navite'.* Did you mean 'native'"),
    ({"cotangent_codec": "int7"}, "unknown codec 'int7'.* Did you mean 'int"),
]
if engine.available():
    MISTAKES += [
        ({"algorithm": "rign"}, "unknown algorithm of allreduce: 'rign'.* Did you mean 'ring'"),
        ({"algorithm": "ring:chunk=x"}, "chunk=x"),
    ]


@pytest.mark.parametrize(("options", "text"), MISTAKES, ids=lambda each: str(each)[:30])
@pytest.mark.parametrize("maker", MAKERS)
def test_mistakes_are_told_when_it_is_made(maker, options, text):
    with pytest.raises(jcc.errors.InvalidArgumentError, match=text):
        MAKERS[maker](**options)


def test_a_codec_in_the_place_of_the_reduction():
    """The reduction is the first argument; the codec is a keyword."""
    for spec in ("int8", "topk:density=0.01", "bf16|lossless"):
        for make in (optim.allreduce_gradients, MAKERS["with_feedback"]):
            with pytest.raises(jcc.errors.UnknownNameError) as caught:
                make(spec)
            assert f"unknown op of allreduce: {spec!r}; valid: 'and'" in str(caught.value)
            assert f"write codec={spec!r}" in str(caught.value)
    with pytest.raises(jcc.errors.UnknownNameError, match="Did you mean 'mean'"):
        optim.allreduce_gradients("maen")


def test_only_sums_have_error_feedback():
    text = (
        "op of allreduce_gradients with error_feedback=True: 'max'; valid: 'mean', 'sum'. "
        "Error feedback needs a sum or a mean"
    )
    with pytest.raises(jcc.errors.UnknownNameError, match=text):
        optim.allreduce_gradients(op="max", codec="int8", error_feedback=True)


def test_operations_name_keyword_arguments_that_they_do_not_have():
    x = jnp.ones(3)
    with pytest.raises(
        jcc.errors.UnknownNameError, match="of allreduce: 'codecs'.*Did you mean 'codec'"
    ):
        jcc.allreduce(x, codecs="int8")
    with pytest.raises(jcc.errors.UnknownNameError, match="of bcast: 'algoritm'.*'algorithm'"):
        jcc.bcast(x, algoritm="ring")
    with pytest.raises(
        jcc.errors.UnknownNameError, match="of allreduce: 'codecs'.*Did you mean 'codec'"
    ):
        jax.vmap(lambda x: jcc.lax.psum(x, "i", codecs="int8"), axis_name="i")(x)


def test_a_state_of_other_gradients():
    optimizer = optim.allreduce_gradients(codec="onebit", error_feedback=True, axis_name="i")
    state = optimizer.init({"w": jnp.ones(3)})

    def update(x):
        return optimizer.update({"w": x, "b": x}, state)[0]

    with pytest.raises(
        jcc.errors.InvalidArgumentError, match=r"must be a pytree like.*init\(params\)"
    ):
        jax.vmap(update, axis_name="i")(jnp.ones((2, 3)))
