"""Trains the same models in PyTorch, with DistributedDataParallel over gloo."""

from __future__ import annotations

import os
import socket
from typing import Any

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from testbed import workers
from testbed.training import common, data
from testbed.training.ways import POWERSGD


class _Mlp(nn.Module):
    def __init__(self, params: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_dense(layer) for layer in params.values())

    def forward(self, x: Any) -> Any:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


class _Block(nn.Module):
    def __init__(self, params: Any, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.parts = nn.ModuleDict({name: _dense(layer) for name, layer in params.items()})

    def forward(self, x: Any) -> Any:
        b, t, width = x.shape
        q, k, v = self.parts["qkv"](_normal(x)).split(width, dim=-1)
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in (q, k, v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.parts["out"](mixed.transpose(1, 2).reshape(b, t, width))
        up = nn.functional.gelu(self.parts["up"](_normal(x)), approximate="tanh")
        return x + self.parts["down"](up)


class _Transformer(nn.Module):
    def __init__(self, params: Any) -> None:
        super().__init__()
        _, depth, heads, _ = data.TASKS["transformer"].layers
        self.embed = nn.Parameter(torch.tensor(params["embed"]))
        self.place = nn.Parameter(torch.tensor(params["place"]))
        self.blocks = nn.ModuleList(_Block(params[f"layer_{i}"], heads) for i in range(depth))
        self.readout = _dense(params["readout"])

    def forward(self, tokens: Any) -> Any:
        x = self.embed[tokens] + self.place
        for block in self.blocks:
            x = block(x)
        return self.readout(_normal(x))


def _dense(params: Any) -> nn.Linear:
    layer = nn.Linear(*params["kernel"].shape)
    layer.weight.data = torch.tensor(params["kernel"].T.copy())
    layer.bias.data = torch.tensor(params["bias"])
    return layer


def _normal(x: Any) -> Any:
    return nn.functional.layer_norm(x, x.shape[-1:])


def _main() -> None:
    given = common.arguments(__doc__)
    world = MPI.COMM_WORLD
    torch.set_num_threads(1)
    first = world.bcast(socket.gethostbyname(socket.gethostname()))
    defaults = {"MASTER_ADDR": first, "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0"}
    os.environ.update(defaults | os.environ)
    torch.distributed.init_process_group("gloo", rank=world.rank, world_size=world.size)
    params = data.init(given.task, given.seed)
    model = _Mlp(params) if given.task == "mlp" else _Transformer(params)
    # 25 MiB is DDP's default.
    bucket_mib = given.way.bucket_bytes / (1 << 20) or 25
    parallel = nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True, bucket_cap_mb=bucket_mib
    )
    hooks = {"fp16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}
    if given.way.codec in hooks:
        parallel.register_comm_hook(None, hooks[given.way.codec])
    elif given.way.codec == POWERSGD:
        # From the third step, the earliest that the hook allows. Its default is step 1,000.
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    rate = data.TASKS[given.task].rate
    optimizer = torch.optim.SGD(parallel.parameters(), lr=rate, momentum=data.MOMENTUM)

    def loss(net: Any, x: Any, y: Any) -> Any:
        logits = net(torch.from_numpy(np.ascontiguousarray(x)))
        labels = torch.from_numpy(np.ascontiguousarray(y)).long()
        return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())

    def run(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        loss(parallel, x, y).backward()
        optimizer.step()

    batches = data.batches(given.task, world.rank, world.size, given.seed)
    found = common.timed(given, run, batches)
    if given.loss:
        with torch.no_grad():
            x, y = data.held_out(given.task, given.seed)
            found["loss"] = float(loss(model, x, y))
    workers.say(found)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    _main()
