"""A worker of TorchRec, or a process of PyTorch with FBGEMM's tables that does not communicate (`fbgemm`)."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.optim.optimizers import in_backward_optimizer_filter

import initial
import process
from reader import Columns
from schema import LABEL, Schema
from workloads import ACCUMULATOR, HIDDEN, LEARNING_RATE, Workload

EPSILON = 1e-10  # TensorFlow's Adagrad has none; zero would divide zero by zero
ADAGRAD = {"optimizer": EmbOptimType.EXACT_ADAGRAD, "learning_rate": LEARNING_RATE, "eps": EPSILON}


class Pairs(torch.autograd.Function):
    """The dot products of each two of F vectors: [B, F, D] to [B, F (F - 1) / 2].

    TorchRec's own InteractionArch selects products by two lists of indices. The gradient of that adds value by value,
    which is slower on CPUs than both directions here: each copies by one list.
    """

    @staticmethod
    def forward(context, vectors: torch.Tensor) -> torch.Tensor:  # noqa: D102
        context.save_for_backward(vectors)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return products.index_select(1, _indices(vectors.shape[1])[0])

    @staticmethod
    def backward(context, gradient: torch.Tensor) -> torch.Tensor:  # noqa: D102
        (vectors,) = context.saved_tensors
        count = vectors.shape[1]
        symmetric = nn.functional.pad(gradient, (0, 1)).index_select(1, _indices(count)[1]).view(-1, count, count)
        return torch.bmm(symmetric, vectors)


@functools.cache
def _indices(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the place of each pair in a matrix of count x count, and for each place of the matrix its pair.

    The diagonal belongs to no pair; it gets the number after the last one.
    """
    row, column = torch.tril_indices(count, count, -1)
    places = torch.full([count * count], len(row))
    places[row * count + column] = places[column * count + row] = torch.arange(len(row))
    return row * count + column, places


def mlp(prefix: str, inputs: int, widths: tuple[int, ...], last_relu: bool) -> nn.Sequential:
    """Returns fully connected layers with ReLU between them, and after the last one if asked."""
    layers: list[nn.Module] = []
    for i, units in enumerate(widths):
        linear = nn.Linear(inputs, units)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(initial.value(f"{prefix}_{i}/kernel", (inputs, units)).T))
            linear.bias.zero_()
        layers += [linear, nn.ReLU()] if last_relu or i + 1 < len(widths) else [linear]
        inputs = units
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    """The dense part of DLRM, as in models.py."""

    def __init__(self, numbers: int, features: int, dim: int) -> None:
        super().__init__()
        self.bottom = mlp("dlrm/bottom", numbers, (512, 256, dim), last_relu=True)
        pairs = (features + 1) * features // 2
        self.top = mlp("dlrm/top", dim + pairs, (512, 256, 1), last_relu=False)

    def forward(self, numbers: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """Returns logits [B] of numeric features [B, n] and the vectors of the others side by side [B, F * D]."""
        dense = self.bottom(numbers)
        stacked = torch.cat([dense, vectors], 1).view(len(dense), -1, dense.shape[1])
        return self.top(torch.cat([dense, Pairs.apply(stacked)], 1)).view(-1)

    def inputs_of_top(self, order: list[int]) -> torch.Tensor:
        """Returns where each input of the top layers is if features, now in this order, were in their own."""
        dim, count = self.bottom[-2].out_features, len(order) + 1
        own = torch.tensor([0, *(1 + feature for feature in order)])
        row, column = torch.tril_indices(count, count, -1)
        _, pair_of = _indices(count)
        return torch.cat([torch.arange(dim), dim + pair_of[own[row] * count + own[column]]])


class MultiHot(nn.Module):
    """The dense part of the multi-hot model, as in graph.py."""

    def __init__(self, numbers: int, features: int, dim: int) -> None:
        super().__init__()
        self.numbers, self.dim = numbers, dim
        self.top = mlp("multi_hot/top", numbers + features * dim, (HIDDEN, 1), last_relu=False)

    def forward(self, numbers: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """Returns logits [B] of numeric features [B, n] and the sums of rows side by side [B, F * D]."""
        return self.top(torch.cat([numbers, vectors], 1)).view(-1)

    def inputs_of_top(self, order: list[int]) -> torch.Tensor:
        """Returns where each input of the top layers is if features, now in this order, were in their own."""
        places = torch.tensor(order)[:, None] * self.dim + torch.arange(self.dim)
        return torch.cat([torch.arange(self.numbers), self.numbers + places.flatten()])


class Local(nn.Module):
    """FBGEMM's tables in this process, with its fused Adagrad."""

    def __init__(self, workload: Workload, tables: dict[str, int]) -> None:
        super().__init__()
        specs = [(rows, workload.dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows in tables.values()]
        self.tables = SplitTableBatchedEmbeddingBagsCodegen(specs, **ADAGRAD)
        for weights, name in zip(self.tables.split_embedding_weights(), tables, strict=True):
            weights.data.copy_(torch.from_numpy(initial.value(_table(workload, name), tuple(weights.shape))))
        for (accumulator,) in self.tables.split_optimizer_states():
            accumulator.fill_(ACCUMULATOR)

    def forward(self, ids: KeyedJaggedTensor) -> torch.Tensor:
        """Returns the sums of the features' rows side by side [B, F * D]."""
        return self.tables(ids.values(), ids.offsets())


class Model(nn.Module):
    """Tables, and the dense part of a workload."""

    def __init__(self, workload: Workload, schema: Schema, tables: nn.Module) -> None:
        super().__init__()
        self.tables = tables
        dense = MultiHot if workload.model == "multi_hot" else Dlrm
        self.dense = dense(len(schema.numeric), len(_features(schema)), workload.dim)

    def forward(self, numbers: torch.Tensor, ids: KeyedJaggedTensor) -> torch.Tensor:
        """Returns logits [B]."""
        found = self.tables(ids)
        return self.dense(numbers, found if isinstance(found, torch.Tensor) else found.values())


def sharded(workload: Workload, schema: Schema) -> nn.Module:
    """Returns the model with TorchRec's sharded tables, by the plan of its planner."""
    configs = [
        EmbeddingBagConfig(name=name, embedding_dim=workload.dim, num_embeddings=rows, feature_names=[name])
        for name, rows in _features(schema).items()
    ]
    model = Model(workload, schema, EmbeddingBagCollection(tables=configs, device=torch.device("meta")))
    sharder = EmbeddingBagCollectionSharder(fused_params=dict(ADAGRAD))
    topology = Topology(world_size=dist.get_world_size(), compute_device="cpu")
    plan = EmbeddingShardingPlanner(topology=topology).collective_plan(model, [sharder], dist.GroupMember.WORLD)
    if dist.get_rank() == 0:
        print(plan, flush=True)
    made = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=[sharder])
    for path, weights in made.state_dict().items():
        if ".embedding_bags." in path:
            _set_shards(weights, initial.value(_table(workload, path.split(".")[-2]), tuple(weights.shape)))
    for state in made.fused_optimizer.state_dict()["state"].values():
        for values in state.values():
            _set_shards(values, np.full(tuple(values.shape), ACCUMULATOR, np.float32))
    # TorchRec orders features by the kind of their sharding. The weights above follow, which costs no time later.
    names = list(_features(schema))
    order = model.tables(_ids(names, np.zeros(0, np.int64), np.zeros(len(names), np.int64))).keys()
    first = model.dense.top[0]
    with torch.no_grad():
        first.weight.copy_(first.weight[:, model.dense.inputs_of_top([names.index(name) for name in order])])
    return made


def _ids(names: list[str], values: np.ndarray, lengths: np.ndarray) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(keys=names, values=torch.from_numpy(values), lengths=torch.from_numpy(lengths))


def _set_shards(tensor: torch.Tensor, values: np.ndarray) -> None:
    """Copies values into this rank's parts of a sharded tensor, or into a plain one."""
    if not hasattr(tensor, "local_shards"):
        tensor.copy_(torch.from_numpy(values))
        return
    for shard in tensor.local_shards():
        places = zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes, strict=True)
        shard.tensor.copy_(torch.from_numpy(values[tuple(slice(first, first + size) for first, size in places)]))


def _table(workload: Workload, name: str) -> str:
    """Returns the name of a feature's table in the graphs of TensorFlow."""
    return f"{workload.model}/embedding_{name}"


def _features(schema: Schema) -> dict[str, int]:
    return {**schema.categorical, **schema.lists}


def main() -> None:
    logging.disable(logging.WARNING)
    job = process.this_job()
    torch.set_num_threads(1)
    rank, size = process.place()
    schema, workload = job.schema, job.workload
    if job.system == "torchrec":
        dist.init_process_group("gloo")
        model = sharded(workload, schema)
        parameters: Iterator[nn.Parameter] = dict(in_backward_optimizer_filter(model.named_parameters())).values()
    else:
        model = Model(workload, schema, Local(workload, _features(schema)))
        parameters = model.dense.parameters()
    optimizer = torch.optim.Adagrad(parameters, lr=LEARNING_RATE, initial_accumulator_value=ACCUMULATOR, eps=EPSILON)
    process.run(job, rank, size, program(model, optimizer, schema))
    if job.system == "torchrec":
        dist.barrier()
        dist.destroy_process_group()


def program(model: nn.Module, optimizer: torch.optim.Optimizer, schema: Schema) -> process.Program:
    """Returns the program that trains and scores with a model."""
    names = list(_features(schema))

    def prepare(columns: Columns) -> tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]:
        rows = len(columns[LABEL])
        lengths = [np.diff(columns[f"{n}/splits"]) if n in schema.lists else np.ones(rows, np.int64) for n in names]
        ids = _ids(names, np.concatenate([columns[name] for name in names]), np.concatenate(lengths))
        numbers = np.stack([columns[name] for name in schema.numeric], axis=1)
        return torch.from_numpy(numbers), ids, torch.from_numpy(np.array(columns[LABEL]))

    loss_of = nn.BCEWithLogitsLoss()

    def step(batch: tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]) -> float:
        numbers, ids, labels = batch
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(numbers, ids), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    @torch.no_grad()
    def score(batch: tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]) -> np.ndarray:
        return torch.sigmoid(model(*batch[:2])).numpy()

    return process.Program(prepare, step, score)


if __name__ == "__main__":
    main()
