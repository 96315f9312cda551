"""Words of training that mean different things to different programs: batches, micro-batches and their number.

Tests: questions/train.py, questions/train_cluster.py, questions/training_options.py.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from functools import cache
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.cli import main
from paleo_lite.distributed.advise import _other_stacks, _with_stated
from paleo_lite.distributed.parallel_config import SHARDING_OF_STAGE, ParallelConfig
from paleo_lite.distributed.table import ScaleTable
from paleo_lite.errors import BadValue
from paleo_lite.questions.train_cluster import advised_question, asked_of_cluster
from paleo_lite.questions.training_options import division_of
from paleo_lite.reporting.predictions import prediction_page

ONE = {"network": "gpt2", "gpu": "a100-sxm-80gb"}
FOUR = {**ONE, "workers": 4}
CNNS = {"network": "resnet18", "gpu": "a100-sxm-80gb", "workers": 4}


@pytest.mark.parametrize("asked", [ONE, CNNS], ids=["one", "several"])
def test_micro_batches_make_up_the_batch_of_a_device(asked) -> None:
    """Samples per micro-batch and their number, as transformers and DeepSpeed have them, or the batch and either."""
    made = pl.train(**asked, micro_batch=3, accumulation=4)
    for same in ({"batch_size": 12, "accumulation": 4}, {"batch_size": 12, "micro_batch": 3}):
        answer = pl.train(**asked, **same)
        said = [note for note in answer.notes if "per_device_train_batch_size" not in note]
        assert {**answer.to_dict(), "notes": said} == {**made.to_dict(), "notes": list(made.notes)}
    assert pl.train(**asked, micro_batch=12).to_dict() == pl.train(**asked, batch_size=12).to_dict()


def test_networks_in_blocks_keep_the_size_of_their_micro_batches() -> None:
    row = pl.train(**FOUR, micro_batch=3, accumulation=4)[0]
    assert row.batch_size == 48 and any("4 micro-batches of 3" in note for note in row.notes)
    assert pl.train(**FOUR, micro_batch=3)[0].batch_size == 12


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            {**ONE, "batch_size": 12, "accumulation": 5},
            "give `--micro-batch 12` in its place if 12 is the size of each",
        ),
        ({**ONE, "batch_size": 12, "micro_batch": 5}, "micro-batches of 5 make up 5"),
        ({**ONE, "batch_size": 12, "micro_batch": 3, "accumulation": 5}, "micro-batches of 3 make up 15"),
        ({**FOUR, "batch_size": 12, "micro_batch": 3, "accumulation": 5}, "micro-batches of 3 make up 15"),
        ({**CNNS, "global_batch_size": 64, "micro_batch": 4}, "is a part of `--batch-size`"),
    ],
)
def test_a_batch_that_its_micro_batches_do_not_make_up(asked, sentence) -> None:
    with pytest.raises(BadValue, match=sentence):
        pl.train(**asked)


@pytest.mark.parametrize(("gpu", "link"), [("rtx4090", "pcie4-x16"), ("tpu-v5p", "ici-v5p")])
def test_a_missing_link_names_that_of_the_device(gpu: str, link: str) -> None:
    with pytest.raises(BadValue, match=f"need a link, and no usual computer of .* is on record: give `--link {link}`"):
        pl.train("gpt2", gpu=gpu, workers=2)


def test_a_missing_link_names_the_instances_of_the_device() -> None:
    """AWS's G6e have 1, 4 or 8 L40S (aws.amazon.com/ec2/instance-types/g6e), of which the list prices have two."""
    with pytest.raises(BadValue, match=r"`--platform '4x l40s @ pcie4-x16'` or `--platform g6e.12xlarge`$"):
        pl.train("gpt2", gpu="l40s", workers=4)


def test_one_worker_recomputes_layers_as_one_device_does() -> None:
    question: dict[str, Any] = {"gpu": "h100-sxm", "recompute": "all", "sequence_length": 256}
    row = pl.train("gpt2", workers=1, **question).rows[0]
    assert row.time_s == pytest.approx(pl.train("gpt2", **question).time_s)
    with pytest.raises(BadValue, match="a network in blocks recomputes `full`"):
        pl.train("gpt2", workers=2, **question)


def test_advice_needs_several_devices() -> None:
    with pytest.raises(BadValue, match="ranks the ways in which several devices divide a step: give `--workers`"):
        pl.train(**ONE, advise="time")


@pytest.mark.parametrize(
    "config",
    [
        ParallelConfig(micro_batch_size=4, recompute="none"),
        ParallelConfig(tensor=2, pipeline=2, virtual_stages=2, sequence_parallel=True, execution="compiled"),
        ParallelConfig(context=4, zero_stage=3, recompute="selective", recompute_modules=("core_attn",)),
        ParallelConfig(sharding="full-shard", recompute="full", recompute_every=2, execution="eager"),
    ],
)
def test_the_question_of_an_advised_division_has_this_division(config: ParallelConfig) -> None:
    row = pl.train(**FOUR, execution="eager")[0]
    alone = advised_question(pl.Train(**FOUR, advise="time"), msgspec.structs.replace(row, parallel=config))
    strategy, division = division_of(alone)
    assert strategy == "3d" and alone.advise is None and alone.execution == config.execution
    sharding = "" if config.zero_stage == 1 else SHARDING_OF_STAGE[config.zero_stage]
    expected = msgspec.structs.replace(config, sharding=config.sharding or sharding, execution="megatron")
    assert division == expected


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {}),
        ({"tensor": 2, "recompute": "full"}, {"tensor": 2, "recompute": "full"}),
        ({"strategy": "ddp", "execution": "compiled"}, {"sharding": "ddp", "execution": "compiled"}),
        ({"accumulation": 4}, {"micro_batches": 4, "micro_batch_size": 1}),
        ({"micro_batch": 1, "recompute": "none"}, {"micro_batch_size": 1, "recompute": "none"}),
        ({"training_settings": {"attention": "eager"}}, {"attention": "eager"}),
    ],
)
def test_advice_keeps_what_is_stated_of_a_division(options: dict[str, Any], fields: dict[str, Any]) -> None:
    """--recompute and --execution changed nothing, and --tensor left a single division to compare."""
    question = pl.Train(**FOUR, advise="time", batch_size=8, **options)
    _, _, settings = asked_of_cluster(question)
    assert settings.parallel is None and dict(settings.stated) == fields
    candidates = [ParallelConfig(), ParallelConfig(tensor=2, sequence_parallel=True), ParallelConfig(pipeline=2)]
    found = _with_stated(candidates, fields)
    assert all(getattr(config, name) == value for config in found for name, value in fields.items())
    assert len(found) == len(set(found)) == (2 if "tensor" in fields else 3)


def test_advice_tries_the_stacks_that_may_have_a_division() -> None:
    """Separate kernels of experts are Megatron-LM's alone, as modules to recompute are."""
    plain, separate = ParallelConfig(), ParallelConfig(expert_kernels="separate")
    assert [config.execution for config in _other_stacks(plain)] == ["compiled", "eager"]
    assert _other_stacks(separate) == []


def test_advice_on_blocks_has_no_strategies_of_layers() -> None:
    with pytest.raises(BadValue, match="`--strategy pipeline-1f1b` divides layers, and `--advise` compares"):
        pl.train(**FOUR, advise="time", strategy="pipeline-1f1b")


def test_remedies_state_the_largest_micro_batch() -> None:
    """Micro-batches of one sample need the same memory in every number, so that they limit no batch."""
    asked = {"network": "llama-3.2-1b", "gpu": "rtx3060", "batch_size": 16}
    remedies = {remedy.options: remedy for remedy in pl.train(**asked).memory.remedies}
    remedy = remedies["--lora 16 --weights int4 --recompute full --accumulation 16"]
    size = remedy.largest_micro_batch
    assert size is not None
    tuned = {**asked, "lora": 16, "weights": "int4", "recompute": "full", "micro_batch": size}
    assert remedy.fits and pl.train(**{**tuned, "batch_size": 64 * size}).fits


def test_both_ways_of_offloading() -> None:
    asked = {"network": "llama-3.2-1b", "gpu": "h100-sxm", "workers": 8, "batch_size": 4, "mixed_precision": True}
    plain, offloaded = (pl.train(**asked, recompute="none", tensor=2, **more)[0] for more in ({}, OFFLOADED))
    assert offloaded.memory_bytes < plain.memory_bytes
    with pytest.raises(BadValue, match="takes a share below 1"):
        pl.train(**asked, offload="activations:2")


OFFLOADED = {"offload": "activations:0.5"}


def test_one_option_names_computers_and_topologies(tmp_path) -> None:
    """A name, a text, and the files of both."""
    text = pl.train("alexnet", platform="2x k40m @ pcie3, 2 nodes @ ethernet20", workers=4)[0]
    file = tmp_path / "mine.toml"
    file.write_text('device = "k40m"\ndevices_per_node = 2\ninside = "pcie3"\nnodes = 2\nbetween = "ethernet20"\n')
    assert pl.train("alexnet", platform=str(file), workers=4)[0].time_s == text.time_s
    compared = pl.train("alexnet", platform=["ec2-p2-k80", "dgx1-p100"], workers=4)
    assert len(compared.answers) == 2


def test_names_of_frameworks_divide_networks_layer_by_layer() -> None:
    for framework, plain in (("ddp", "data"), ("full-shard", "zero-3"), ("shard-grad-op", "zero-2")):
        assert pl.train(**CNNS, strategy=framework).to_dict() == pl.train(**CNNS, strategy=plain).to_dict()
    with pytest.raises(BadValue, match="hybrid-shard` is for networks in blocks"):
        pl.train(**CNNS, strategy="hybrid-shard")


def test_language_models_are_trained_with_adamw_and_others_with_sgd() -> None:
    assert pl.train(**ONE).time_s == pl.train(**ONE, optimizer="adamw").time_s
    assert pl.train("bert-base", gpu="t4").time_s == pl.train("bert-base", gpu="t4", optimizer="adamw").time_s
    assert pl.train(**CNNS)[0].time_s == pl.train(**CNNS, optimizer="sgd")[0].time_s
    assert pl.train(**FOUR, tensor=2)[0].memory_bytes == pl.train(**FOUR, tensor=2, optimizer="adamw")[0].memory_bytes


def test_a_deadline_marks_the_numbers_of_devices_that_meet_it() -> None:
    asked = {**CNNS, "workers": [1, 2, 4, 8], "samples": "1.28M", "epochs": 90}
    plain = pl.train(**asked)
    hours = [row.hours for row in plain]
    table = pl.train(**asked, within=f"{hours[2] * 60 + 1} min")
    assert [row.in_time for row in table] == [False, False, True, True] and [row.in_time for row in plain] == [None] * 4
    assert table.notes[0].startswith("4 workers are the fewest here that end within")
    none = pl.train(**asked, within="1 min")
    assert none.notes[0].startswith("none of these numbers of workers ends within 1 min: the fastest, 8, takes")
    assert "| yes |" in re.sub(" +", " ", table.document().markdown())


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({**CNNS, "within": "10d"}, "`--within` needs an amount of training"),
        ({**ONE, "tokens": "1B", "within": "10d"}, "compares numbers of devices"),
        ({**CNNS, "samples": 100, "within": "10"}, "must be a duration such as 36h or 10d"),
        ({**CNNS, "samples": 100, "within": "10d", "advise": "time"}, "give only one of `--within`"),
    ],
)
def test_impossible_deadlines(asked, sentence) -> None:
    with pytest.raises(BadValue, match=sentence):
        pl.train(**asked)


@pytest.mark.parametrize("more", [{"tensor": 2}, {"pipeline": 2}, {"communication": {"sequence-parallel": True}}])
def test_replicas_have_two_names_in_blocks_too(more: dict[str, Any]) -> None:
    """Only where no strategy is stated do tensor-parallel groups shard the state of the optimizer (ZeRO 1)."""
    asked: dict[str, Any] = {"network": "gpt2", "gpu": "a100-sxm-80gb", "workers": 8, "optimizer": "adamw", **more}
    data, ddp, usual = (pl.train(**asked, strategy=name).to_dict() for name in ("data", "ddp", None))
    assert data == ddp
    assert data["rows"][0]["memory_bytes"] > usual["rows"][0]["memory_bytes"]


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "more",
    [{}, {"accumulation": 2}, {"micro_batch": 4}, {"recompute": "full"}, {"offload": "cpu"},
     {"lora": 8}, {"execution": "compiled"}, {"communication": "collective=tree"}],
)  # fmt: skip
def test_plain_data_parallelism_has_two_names_and_one_number(more) -> None:
    """Of a language model, too; it is also what several devices do unless told otherwise."""
    asked = {**FOUR, "batch_size": 8, **more}
    plain = pl.train(**asked).to_dict()
    assert pl.train(**asked, strategy="data").to_dict() == plain
    assert pl.train(**asked, strategy="ddp").to_dict() == plain


NODE = {"network": "gpt2", "platform": "dgx-a100", "workers": 4}
IN_BLOCKS = [{"strategy": name} for name in ("ddp", "zero-1", "zero-2", "full-shard")] + [{"tensor": 2}]


@cache
def plain_step(*division):
    """The step of a node without further options."""
    return pl.train(**NODE, batch_size=8, **dict(division))[0]


@pytest.mark.spread(15)
@pytest.mark.parametrize("division", IN_BLOCKS, ids=str)
@pytest.mark.parametrize(
    "more",
    [{"offload": "cpu"}, {"offload": "nvme"}, {"recompute": "full"}, {"communication": "slowdown=0.1"},
     {"accumulation": 2}, {"lora": 8}],
    ids=str,
)  # fmt: skip
def test_every_option_changes_the_step_of_a_network_in_blocks(division, more) -> None:
    plain, changed = plain_step(*division.items()), pl.train(**NODE, batch_size=8, **division, **more)[0]
    assert (changed.time_s, changed.memory_bytes) != (plain.time_s, plain.memory_bytes)


def test_the_state_of_a_network_in_blocks_is_updated_on_the_host() -> None:
    """CPU-Adam updates 28 bytes per parameter at 112 GB/s (Ren et al. 2021, table 4), for a node."""
    asked = {**NODE, "batch_size": 8, "strategy": "zero-2", "mixed_precision": True}
    plain, offloaded = (pl.train(**asked, **more)[0] for more in ({}, {"offload": "cpu"}))
    parameters = 124_439_808
    assert offloaded.update_s > 28 * parameters / 112e9 > plain.update_s
    assert plain.memory_bytes - offloaded.memory_bytes >= 12 * parameters / 4  # a quarter of the state on each device
    assert any("gradients and optimizer state are in the memory of the host per node" in n for n in offloaded.notes)


@pytest.mark.parametrize("division", IN_BLOCKS, ids=str)
@pytest.mark.parametrize("more", [{"recompute": "sqrt"}, {"recompute": "all"}, {"communication": "bucket=50MB"}])
def test_options_of_networks_layer_by_layer_are_refused_in_blocks(division, more) -> None:
    with pytest.raises(BadValue, match="divided layer by layer, such as resnet50"):
        pl.train(**NODE, batch_size=8, **division, **more)


def test_sharding_takes_the_collectives_that_have_a_reduce_scatter() -> None:
    asked = {**NODE, "batch_size": 8, "strategy": "zero-1"}
    assert pl.train(**asked, communication="collective=ring")[0].time_s > 0
    with pytest.raises(BadValue, match="zero-1 needs a reduce-scatter and an all-gather: use ring or hierarchical"):
        pl.train(**asked, communication="collective=tree")


@pytest.mark.parametrize("name", ["fsdp", "FSDP2", "full_shard"])
def test_strategies_have_the_names_of_frameworks(name) -> None:
    asked = {**NODE, "batch_size": 8}
    assert pl.train(**asked, strategy=name).to_dict() == pl.train(**asked, strategy="full-shard").to_dict()


def test_a_language_model_on_several_devices_has_the_constants_of_published_steps() -> None:
    row = pl.train(**FOUR, batch_size=8)[0]
    assert any("ddp, eager: 1 micro-batch of 8" in note for note in row.notes)
    strong = pl.train(**{**ONE, "workers": [1, 2, 4]}, global_batch_size=8, accumulation=2)
    assert [note.rsplit(": ")[-1] for row in strong for note in row.notes if "micro-batch" in note] == [
        "2 micro-batches of 4", "2 micro-batches of 2", "2 micro-batches of 1",
    ]  # fmt: skip
    with pytest.raises(BadValue, match="1 replica times 3 micro-batches: give `--global-batch-size 6` or 9"):
        pl.train(**FOUR, global_batch_size=8, accumulation=3)


@pytest.mark.parametrize(
    ("asked", "more"),
    [
        ({**ONE}, {"batch_size": 64}),
        ({**ONE, "batch_size": 2, "accumulation": 2}, {"batch_size": 128}),
        (FOUR, {"batch_size": 64}),
        ({**FOUR, "tensor": 2, "global_batch_size": 8}, {"micro_batch": 4}),
    ],
)
def test_a_note_says_what_larger_micro_batches_would_gain(asked, more) -> None:
    answers = [pl.train(**asked), pl.train(**{**asked, **more})]
    rates = [(answer if hasattr(answer, "workload") else answer[-1]).throughput_per_s for answer in answers]
    ((name, value),) = more.items()
    assert f"is {rates[1] / rates[0]:.2f} times as fast" in answers[0].notes[0]
    assert answers[0].notes[0].endswith(f"`--{name.replace('_', '-')} {value}`")
    assert not any("times as fast" in note for note in answers[1].notes)


def test_nothing_is_said_of_larger_micro_batches_that_do_not_fit() -> None:
    assert not any("times as fast" in note for note in pl.train("llama-2-7b", gpu="t4").notes)


def test_frozen_experts_have_no_gradients_to_exchange() -> None:
    asked = {"network": "olmoe-1b-7b", "gpu": "h100-sxm", "workers": 8, "batch_size": 2}
    tuned, trained = pl.train(**asked, lora=8)[0], pl.train(**asked)[0]
    assert 0 < tuned.communication_s < trained.communication_s / 10
    assert tuned.memory_bytes < trained.memory_bytes


@pytest.mark.parametrize(
    ("words", "listed"),
    [
        ("adapters=q_proj,v_proj", {"adapters": ["q_proj", "v_proj"]}),
        ("adapters=q_proj,v_proj", {"adapters": ("q_proj", "v_proj"), "only": None}),
        ("adapters=q_proj,v_proj", ["adapters=q_proj", "v_proj"]),
        ("adapters=q_proj", {"adapters": ["q_proj"]}),
    ],
)
def test_names_between_commas_are_a_list_in_python(words, listed) -> None:
    asked = {"network": "llama-3.2-1b", "gpu": "h100-sxm", "sequence_length": 256, "lora": 8}
    assert pl.train(**asked, trainable=listed).to_dict() == pl.train(**asked, trainable=words).to_dict()


def test_patterns_of_frozen_layers_are_a_list_in_python() -> None:
    patterns = ["transformer.wte", "transformer.h.[0-9].*"]
    listed = pl.train(**ONE, trainable={"except": patterns})
    assert listed.to_dict() == pl.train(**ONE, trainable=f"except={','.join(patterns)}").to_dict()
    assert listed.trainable_parameters < pl.train(**ONE).trainable_parameters


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"trainable": {"adapters": []}}, "takes settings such as adapters=... .got no value of adapters."),
        ({"trainable": {"only": ["no_such_layer"]}}, "matches no layer with weights"),
        ({"workers": 8, "experts": {"tensor": [1, 2]}}, "tensor: the value must be an integer"),
    ],
)
def test_lists_that_an_option_does_not_take_are_refused_in_a_sentence(more, sentence) -> None:
    with pytest.raises(BadValue, match=sentence):
        pl.train("llama-3.2-1b", gpu="h100-sxm", **more)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"network": []}, "the list of networks is empty"),
        ({"gpu": []}, "`--gpu` has no value: give one, or leave it out"),
        ({"trainable": []}, "`--trainable` has no value"),
        ({"epochs": "x"}, "`--epochs` must be a number, such as 0.5"),
        ({"epochs": {}}, "`--epochs` takes no such value: give text, a number or a list of them .got {}."),
    ],
)
def test_a_value_of_another_type_is_refused_as_on_the_command_line(more, sentence) -> None:
    with pytest.raises(BadValue, match=sentence):
        pl.train(**{**ONE, **more})


def test_none_is_the_default_of_every_option() -> None:
    asked = {**ONE, "sequence_length": 64}
    given_none = pl.train(**asked, hardware_files=None, epochs=None, tensor=None)
    assert given_none.to_dict() == pl.train(**asked).to_dict()


def test_the_word_for_blocks_beside_a_way_of_sharding_asks_one_question():
    """``--strategy 3d --sharding zero-1``, as commands of earlier versions say it."""
    asked = {"gpu": "h100-sxm", "workers": 8, "tensor": 2, "sequence_length": 512, "precision": "bf16"}
    both = pl.train("llama-3.2-1b", strategy=["3d", "distributed-optimizer"], **asked)
    assert both.rows[0].time_s == pl.train("llama-3.2-1b", strategy="distributed-optimizer", **asked).rows[0].time_s


@pytest.mark.parametrize(
    ("given", "meant"),
    [("batchsize", ": did you mean batch_size?"), ("lora_r", ": did you mean lora?"),
     ("gradient_accumulation_steps", ": did you mean accumulation?"), ("zzz", "")],
)  # fmt: skip
def test_an_argument_that_does_not_exist_names_the_one_that_is_meant(given: str, meant: str) -> None:
    with pytest.raises(TypeError) as error:
        pl.train("gpt2", gpu="t4", **{given: 2})
    assert str(error.value) == f"train() got an unexpected keyword argument {given!r}{meant}"


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("asked", "size"), [({"network": "resnet50", "gpu": "t4"}, 16), ({"network": "qwen3-8b", "gpu": "b200"}, 16)]
)
def test_a_note_says_how_a_batch_is_divided(asked: dict[str, str], size: int) -> None:
    """Users of transformers mean the size of a micro-batch by its batch size."""
    table = pl.train(**asked, batch_size=64, accumulation=4)
    (note,) = [note for note in table.notes if "per_device_train_batch_size" in note]
    assert f"4 micro-batches of {size};" in note and "give `--micro-batch 64`" in note
    stated = pl.train(**asked, micro_batch=16, accumulation=4)
    assert not [note for note in stated.notes if "per_device_train_batch_size" in note]


def test_cut_cross_entropy_holds_no_logits() -> None:
    """Wijmans et al. 2024, table 1: the logits of 8,192 tokens take 1 MB instead of 4 to 24 GB, in the time of a fused
    loss."""
    asked = {"network": "gpt2", "gpu": "a100-sxm-80gb", "batch_size": 8}
    answers = {loss: pl.train(**asked, training_settings=f"loss={loss}") for loss in ("fp32", "fused", "cut")}
    logits = {loss: answer.memory.memory.logits_bytes for loss, answer in answers.items()}
    assert logits["fp32"] > logits["fused"] > 1000 * logits["cut"]
    assert answers["cut"].time_s == answers["fused"].time_s


def test_numbers_of_workers_that_suit_nodes_and_replicas_are_named() -> None:
    """Replicas of 16 devices fill two nodes of eight; one of three devices fills no node alone."""
    asked = {"network": "llama-3-8b", "gpu": "h100-sxm"}
    with pytest.raises(BadValue, match=r"must divide the number of workers, such as 16 \(got 12\)"):
        pl.train(**asked, workers=12, tensor=4, pipeline=4)
    with pytest.raises(BadValue, match=r"must divide the number of workers, such as 6 or 24 \(got 16\)"):
        pl.train(**asked, workers=16, pipeline=3)
    with pytest.raises(BadValue, match="must be a multiple of 8, the devices per node, such as 8 or 16"):
        pl.train(**asked, workers=12, tensor=4)


def test_gradients_are_released_on_one_device_alone() -> None:
    asked = {"gpu": "h100-sxm", "training_settings": {"gradients": "released"}, "sequence_length": 128}
    with pytest.raises(BadValue, match=r"is for one device alone: several exchange gradients"):
        pl.train("llama-3.2-1b", workers=2, **asked)
    cause = "no gradients for micro-batches or other devices: leave out `--micro-batch` and `--global-batch-size`, and"
    with pytest.raises(BadValue, match=cause):
        pl.train("llama-3.2-1b", global_batch_size=4, micro_batch=1, **asked)
    alone = pl.train("llama-3.2-1b", **asked)
    assert pl.train("llama-3.2-1b", workers=1, **asked).to_dict() == alone.to_dict()


@pytest.mark.parametrize("samples", [4, 16])
def test_the_largest_micro_batch_does_not_depend_on_the_batch(samples: int) -> None:
    """With micro-batches every batch fits: the largest one that is named is a micro-batch."""
    asked = {"gpu": "a100-sxm-80gb", "precision": "bf16", "sequence_length": 2048, "micro_batch": 2}
    step = pl.train("llama-3.2-1b", batch_size=samples, **asked)
    whole = pl.train("llama-3.2-1b", batch_size=4, **{**asked, "micro_batch": None, "accumulation": 2})
    assert step.memory is not None and whole.memory is not None
    assert step.memory.largest_micro_batch == whole.memory.largest_micro_batch
    assert step.memory.largest_batch == step.memory.largest_micro_batch * samples // 2
    (fact,) = [text for name, text in prediction_page(step).facts if name == "peak memory"]
    assert fact.endswith(f"; largest micro-batch {step.memory.largest_micro_batch}")


def test_training_of_a_denoiser_is_one_answer_however_it_is_asked() -> None:
    """`train` trains the denoiser of a pipeline as `diffusion --phase training` does, and one worker is one device."""
    asked: dict[str, Any] = {"gpu": "h100-sxm", "mixed_precision": True, "batch_size": 2, "image_size": 512}
    alone = pl.train("sd-1.5", **asked)
    assert alone.time_s == pl.diffusion("sd-1.5", phase="training", **asked).time_s
    assert (alone.precision, alone.workload.options.optimizer) == ("bf16", "adamw")
    rows = pl.train("sd-1.5", workers=[1, 8], strategy="full-shard", **asked).rows
    assert rows[0].time_s == pytest.approx(alone.time_s)
    assert rows[1].memory_bytes < rows[0].memory_bytes
    assert pl.diffusion("sd-1.5", phase="training", workers=[1], **asked).rows[0].time_s == rows[0].time_s


def test_the_denoiser_of_videos_takes_their_frames() -> None:
    asked = {"gpu": "h100-sxm", "mixed_precision": True, "image_size": "832x480"}
    short, long = (pl.train("wan-2.1-1.3b", frames=frames, **asked) for frames in (17, 33))
    assert 1.5 < long.time_s / short.time_s < 2.5  # 5 and 9 latent frames


def test_blocks_of_a_denoiser_are_recomputed() -> None:
    """FLUX.1: 57 blocks of 4,096 + 512 tokens and 3,072 features in 16 bits, of which the inputs are saved.

    Text, picture and time enter a block, so that no single tensor connects it to the others.
    """
    asked: dict[str, Any] = {"gpu": "h100-sxm", "lora": 16}
    whole, blocks = (pl.train("flux.1-dev", recompute=name, **asked).memory.memory for name in ("none", "full"))
    inputs_bytes = 57 * (4096 + 512) * 3072 * 2
    assert inputs_bytes < blocks.activations_bytes < 1.5 * inputs_bytes < 0.1 * whole.activations_bytes
    sharded = pl.train("flux.1-dev", workers=8, strategy="full-shard", recompute="full", **asked)
    assert sharded.rows[0].memory_bytes < blocks.total_bytes


LONG = {"network": "llama-3.1-8b", "gpu": "h100-sxm", "workers": 64, "sequence_length": 8192}


@pytest.mark.parametrize(
    "asked",
    [
        {**LONG, "advise": "time"},
        {**LONG, "advise": "joules"},
        {**LONG, "advise": "time", "batch_size": 8},
        {**LONG, "advise": "time", "mixed_precision": True},
        {"network": "vgg16", "gpu": "v100-sxm2", "link": "nvlink2-x6", "workers": 8, "advise": "time"},
        {"network": "llama-3-8b", "gpu": "h100-sxm", "workers": 8, "batch_size": 8, "advise": "joules"},
        {"network": "gpt-oss-20b", "gpu": "h100-sxm", "workers": 8, "advise": "time"},
        {"network": "flux.1-dev", "gpu": "h100-sxm", "workers": 8, "mixed_precision": True, "advise": "time"},
    ],
)
def test_the_advised_command_states_the_efficiency_of_the_first_row(asked: dict[str, Any]) -> None:
    """All rows have one baseline: that of the best row."""
    advice = pl.train(**asked)
    assert isinstance(advice, ScaleTable) and advice.command is not None
    alone = json.loads(CliRunner().invoke(main, [*shlex.split(advice.command)[1:], "--format", "json"]).stdout)
    assert advice.rows[0].efficiency == pytest.approx(alone["rows"][0]["efficiency"])
    assert len({row.single_worker_per_s for row in advice.rows}) == 1


def test_advice_counts_all_stacks_and_explains_efficiencies() -> None:
    advice = pl.train(**LONG, advise="time")
    assert isinstance(advice, ScaleTable)
    assert advice.rows[0].efficiency > 1  # one device alone computes all its blocks again
    assert any("recomputes activations" in note for note in advice.rows[0].notes)
    unfit = sum(row.fits is False for row in advice.rows)
    assert unfit == 2 and f"{unfit} do not fit" in advice.why


def test_nothing_is_said_of_a_baseline_without_speed_ups() -> None:
    asked: dict[str, Any] = {"network": "llama-3.1-8b", "gpu": "h100-sxm", "sequence_length": 8192}
    text = str(pl.train(**asked, workers=64, strategy="full-shard").document().markdown())
    assert "speed-up" not in text
    assert "relative to the throughput per worker of 32 workers\n" in str(
        pl.train(**asked, workers=[32, 64], strategy="full-shard").document().markdown()
    )


def test_csv_has_the_ends_of_intervals() -> None:
    table = pl.train("resnet50", gpu="v100-sxm2", link="nvlink2-x6", workers=[2, 4])
    out = io.StringIO()
    table.document().write_csv(out)
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert "interval" not in rows[0]
    ends = [(float(row["low_s"]), float(row["high_s"])) for row in rows]
    assert ends == [row.interval for row in table]


@pytest.mark.parametrize("execution", ["eager", "compiled", "megatron"])
@pytest.mark.parametrize("strategy", ["ddp", "full-shard"])
def test_an_answer_of_several_devices_names_its_execution(execution, strategy):
    asked = {"network": "llama-3.2-1b", "gpu": "h100-sxm", "workers": 8, "strategy": strategy}
    table = pl.train(**asked, execution=execution)
    assert table.to_dict()["execution"] == execution
    usual = pl.train(**asked)
    assert (usual.time_s == table.time_s) == (usual.execution == execution)
    assert ("execution", execution) in table.document().facts
