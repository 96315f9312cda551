"""The registry of columns: for each quantity that tables show its heading, unit, form, and meaning, stated once.

A view names the columns of a table in their order (`select_columns`). What differs in one table stands there, with the
reason: the key of the value where its rows have another (`find_column("gpu", key="device")`), or a heading that says
what this table counts. `docs/reference/columns.md` is generated from the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from ..text import make_printable
from ..units import format_interval, format_number, format_shape, format_si
from .document import Column
from .formats import (
    format_3_digits,
    format_bandwidth,
    format_bytes,
    format_bytes_short,
    format_count,
    format_dollars,
    format_error,
    format_exact_seconds,
    format_exact_share,
    format_flops,
    format_gain,
    format_grams,
    format_joules,
    format_kj,
    format_mark,
    format_multiple,
    format_names,
    format_option,
    format_percent,
    format_percent_rounded,
    format_ratio,
    format_time,
    format_time_short,
    format_watts,
    format_whole_seconds,
    format_yes_no,
)


def select_columns(
    *names: str | Column,
    drop: Sequence[str] = (),  # keys of the columns that a narrow terminal drops, the first of them first
    bars: Collection[str] = (),  # keys of the fractions that are also shown as bars
    short: bool = False,  # whether times and bytes have three digits instead of four, for wide tables
) -> list[Column]:
    """Return columns of the registry by name, in the given order; columns that a view changed stand for themselves."""
    selected = []
    for name in names:
        column = find_column(name) if isinstance(name, str) else name
        if column.key in drop:
            column = column.replace(drop_order=len(drop) - drop.index(column.key))
        if short and column.show in _SHORT_FORMS:
            column = column.replace(show=_SHORT_FORMS[column.show])
        if column.key in bars:
            column = column.replace(bar=True)
        selected.append(column)
    return selected


def find_column(name: str, **changes: Any) -> Column:
    """Return a column of the registry, with some of its fields changed for one table."""
    return COLUMNS[name].replace(**changes)


def option_column(name: str) -> Column:
    """Return the column of an option that no table has by itself: its name is its heading."""
    return Column(name, name.replace("_", "\n"), format_option, left=True)


def number_column(name: str) -> Column:
    """Return a column of the registry, or that of a number without an entry, whose name is its heading."""
    if name in COLUMNS:
        return COLUMNS[name]
    return Column(name, make_printable(name.replace("_", " ")).replace(" ", "\n"), format_number)


def part_column(name: str, show: Callable[[Any], str]) -> Column:
    """Return the column of one of several parts that a table has beside each other, such as parts of the memory."""
    return Column(name, name, show)


_SHORT_FORMS: dict[Callable[[Any], str], Callable[[Any], str]] = {
    format_time: format_time_short,
    format_bytes: format_bytes_short,
}


# Kinds of columns -------------------------------------------------------------------------------------------------


def _text(key: str, title: str, meaning: str, show: Callable[[Any], str] = str, wrap: bool = False) -> Column:
    """Return a column of text, aligned to the left."""
    return Column(key, title, show, meaning=meaning, left=True, wrap=wrap)


def _wrapped(key: str, title: str, meaning: str) -> Column:
    """Return a column of long text, which is wrapped."""
    return _text(key, title, meaning, wrap=True)


def _flag(key: str, title: str, meaning: str) -> Column:
    """Return a column of ``yes`` and ``no``."""
    return _text(key, title, meaning, format_yes_no)


def _number(key: str, title: str, unit: str, show: Callable[[Any], str], meaning: str) -> Column:
    """Return a column of numbers in a unit, aligned to the right; the unit is that of the value, which CSV contains."""
    return Column(key, title, show, unit=unit, meaning=meaning)


def _count(key: str, title: str, meaning: str) -> Column:
    """Return a column of whole numbers."""
    return _number(key, title, "", format_count, meaning)


def _share(key: str, title: str, meaning: str, show: Callable[[Any], str] = format_percent) -> Column:
    """Return a column of fractions of 1, shown in percent."""
    return _number(key, title, "1", show, meaning)


def _time(key: str, title: str, meaning: str) -> Column:
    """Return a column of seconds."""
    return _number(key, title, "s", format_time, meaning)


def _bytes(key: str, title: str, meaning: str) -> Column:
    """Return a column of bytes."""
    return _number(key, title, "B", format_bytes, meaning)


def _rate(key: str, title: str, meaning: str, unit: str = "1/s") -> Column:
    """Return a column of numbers of things per second."""
    return _number(key, title, unit, format_number, meaning)


_QUESTION = (
    _text("network", "network", "name of the network"),
    _text("gpu", "device", "ID of the device"),
    _text("precision", "precision", "precision of the arithmetic"),
    _text("phase", "phase", "passes of the network: inference, training, prefill, decode, or one of a training step"),
    _text("execution", "execution", "how kernels are executed, or the engine"),
    _text("time_model", "time model", "time model of the answer"),
    _text("answer", "answer", "whether the answer is a forecast or a bound"),
    _text("clock", "clock", "clock of the peak"),
    _number("power_limit_w", "power\nlimit", "W", format_watts, "power limit of the device"),
    _count("batch_size", "batch", "samples of a batch; of a scaling table those of one worker or of all"),
    _count("sequence_length", "sequence\nlength", "tokens of a sequence"),
    _count("context", "context", "tokens in the KV cache"),
    _text("weights", "weights", "format of the weights"),
    _text("offload", "offload", "what of the network stays in the memory of the host"),
    _text("image_size", "size", "pixels of a picture or video"),
    _count("steps", "steps", "steps of denoising, or steps of an engine"),
    _count("frames", "frames", "frames of a video"),
    _text("scaling", "scaling", "`strong` divides a batch among the workers, `weak` gives each the same"),
    _text("strategy", "strategy", "how the work is divided among devices"),
    _text("link", "link", "link between the devices"),
    _text("collective", "collective", "collective operation, or the algorithm of that of the gradients"),
    _count("devices", "devices", "number of devices"),
    _count("workers", "workers", "devices that share the work, or processes of a stage"),
    _count("replicas", "replicas", "copies of the network that work beside each other"),
    _count("tensor", "tensor", "devices of tensor parallelism"),
    _count("pipeline", "pipeline", "stages of pipeline parallelism"),
    _count("expert_parallel", "expert\npar.", "devices of expert parallelism"),
    _count("attention_data_parallel", "attn.\ndata p.", "devices that divide the sequences of the attention"),
    _count("ulysses", "Ulysses", "devices among which Ulysses divides a sequence by heads"),
    _count("ring", "ring", "devices among which ring attention divides a sequence"),
    _count("guidance", "guidance", "groups of devices for the two runs of guidance"),
    _rate("rate_per_s", "requests\nper s", "requests that arrive per second"),
    _count("concurrency", "users", "users that send a request when the last one is answered"),
)
"""What was asked."""

_RESULTS = (
    _time("time_s", "time", "time of what the row is of: a step, a batch, a layer, a kernel"),
    _number("interval", "at 90%", "s", format_interval, "90% interval of the time"),
    _time("low_s", "from\n(90%)", "lower end of the 90% interval of the time"),
    _time("high_s", "to\n(90%)", "upper end of the 90% interval of the time"),
    _time("bound_s", "bound", "shortest time that the data sheet allows"),
    _rate("throughput_per_s", "samples\nper s", "samples, pictures, prompts or tokens per second"),
    _rate("tokens_per_s", "tokens\nper s", "tokens per second of all devices"),
    _bytes("memory_bytes", "memory", "peak memory of the device that needs most"),
    _flag("fits", "fits", "whether it fits into the memory of the device"),
    _count("largest_batch", "largest\nbatch", "largest batch that fits into the memory"),
    _count(
        "largest_micro_batch", "largest\nmicro-batch", "largest micro-batch that fits into the memory, of any number"
    ),
    _number("power_w", "power", "W", format_watts, "average power of one device"),
    _number("energy_j", "energy", "J", format_joules, "energy of all devices for what the time is of"),
    _number("usd_per_million", "USD per\nmillion", "USD", format_number, "price of a million samples or tokens"),
    _number("hours", "hours", "h", format_number, "time of the whole run"),
    _flag("in_time", "in\ntime", "whether the whole run ends before the deadline"),
    _number("cost_usd", "cost\nUSD", "USD", format_number, "price of the whole run"),
    _number("kwh", "kWh", "kWh", format_number, "energy of the devices in the whole run"),
    _number("kwh_per_million", "kWh per\nmillion", "kWh", format_3_digits, "energy of a million samples or tokens"),
    _number("site_kwh", "kWh at\nthe meter", "kWh", format_number, "energy of the whole run at the meter of the site"),
    _number("site_energy_j", "at the\nmeter", "J", format_joules, "energy of a step at the meter of the site"),
    _number("token_electricity_usd", "electricity\nUSD per 1M", "USD", format_number, "electricity of 1M tokens"),
    _number("electricity_usd", "electricity\nUSD", "USD", format_number, "price of the electricity of the whole run"),
    _number("co2_g", "CO2", "g", format_grams, "CO2 of the electricity of the whole run"),
    _number("speedup", "speed-up", "1", format_number, "ratio to the throughput of the first row, or of one worker"),
    _number("speedup_low", "speed-up\nfrom", "1", format_3_digits, "lower end of the 90% interval of the speed-up"),
    _number("speedup_high", "speed-up\nto", "1", format_3_digits, "upper end of the 90% interval of the speed-up"),
    _share("scaling_efficiency", "scaling\nefficiency", "speed-up divided by the number of workers"),
    _share("compute_share", "compute\nbound", "share of the time that arithmetic limits", format_percent_rounded),
    _share("memory_share", "memory\nbound", "share of the time that memory bandwidth limits", format_percent_rounded),
    _share("mfu", "MFU", "model FLOPs utilisation: FLOPs of the network per second, of the peak"),
    _time("time_per_image_s", "per picture\nor video", "time of a batch of pictures divided by their number"),
    _number("gain", "gain", "1", format_gain, "throughput relative to that without the change"),
    _number("time_ratio", "time", "1", format_multiple, "time relative to that without the remedy"),
    _wrapped("limited_by", "limited by", "what limits the throughput"),
    _text("model", "based on", "what the parameters of the time model are from"),
)
"""What every kind of question answers."""

_STEPS_OF_WORKERS = (
    _time("compute_s", "compute", "time in which a worker computes"),
    _time("exposed_s", "exposed\ncomm.", "communication that no computation hides"),
    _time("hidden_s", "hidden\ncomm.", "communication while the device computes"),
    _time("update_s", "update", "time of the update of the weights"),
    _time("input_s", "input\nwait", "time in which a worker waits for its input"),
    _number("device_flops_per_s", "FLOP/s\nper device", "FLOP/s", format_flops, "FLOPs per second of one device"),
)
"""What a step of several workers consists of."""

_COUNTS = (
    _text("name", "name", "name of what the row is of"),
    _text("layer", "layer", "name of the layer or module"),
    _text("operation", "operation", "name of the operation"),
    _text("module", "module", "module of the program"),
    _text("kernel", "kernel", "name of the kernel"),
    _text("kind", "kind", "kind of the layer, link or function"),
    _text("part", "part", "part of the whole, such as a part of the memory or of a pipeline"),
    _text("pass", "pass", "pass of a training step"),
    _number("input_shape", "input", "", format_shape, "shape of the input"),
    _number("output_shape", "output", "", format_shape, "shape of the output"),
    _number("weight_shape", "weight", "", format_shape, "shape of the weight"),
    _wrapped("inputs", "inputs", "shapes of the inputs"),
    _wrapped("outputs", "outputs", "shapes of the outputs"),
    _wrapped("parents", "parents", "layers whose outputs it reads"),
    _wrapped("attributes", "attributes", "attributes of the layer, such as the stride"),
    _count("layers", "layers", "number of layers"),
    _number("parameters", "parameters", "", format_si, "number of parameters"),
    _number("active_parameters", "active", "", format_si, "parameters that a token uses"),
    _count("frozen_parameters", "frozen", "parameters that are not trained"),
    _bytes("parameters_bytes", "parameters", "bytes of the parameters"),
    _count("count", "count", "count of the convention: FLOPs, MACs or operations"),
    _number("flops", "FLOPs", "FLOP", format_si, "floating-point operations; a multiply-accumulate is two"),
    _number("macs", "MACs", "MAC", format_si, "number of multiply-accumulates"),
    _number("run_macs", "MACs\nper run", "MAC", format_si, "multiply-accumulates of one run of a part of a pipeline"),
    _bytes("bytes", "bytes", "bytes moved to and from memory"),
    _count("convolution_count", "in convolutions", "count of the convolutions"),
    _share("convolution_share", "share of\nconvolutions", "share of the count", format_exact_share),
    _share("share", "share", "share of the total"),
    _text("bound", "bound by", "what limits the time: compute, memory, or a fixed cost"),
    _count("launches", "launches", "launches of the kernel"),
    _count("runs", "runs", "how often a part of a pipeline runs"),
    _count("samples", "samples", "samples of a run, or timed repetitions"),
    _time("run_s", "one run", "time of one run of a part of a pipeline"),
    _time("transfer_s", "copies", "time of copies from one memory to another"),
    _number("year", "year", "", str, "year of publication"),
    _text("publisher", "publisher", "who published the network"),
    _wrapped("source", "source", "where the figure, the network or the measurement is from"),
    _wrapped("meaning", "meaning", "what the name of the row means"),
)
"""Networks, layers and their counts."""

_SERVING = (
    _text("latency", "latency", "which latency of a request"),
    _time("mean", "mean", "mean over the requests"),
    _time("p50", "p50", "median over the requests"),
    _time("p90", "p90", "90th percentile over the requests"),
    _time("p99", "p99", "99th percentile over the requests"),
    _time("prompt_s", "prompt", "time of the prompt"),
    _time("ttft_p50_s", "first token\nmedian", "median time to the first token"),
    _time("tpot_p50_s", "per token\nmedian", "median time per token after the first"),
    _time("latency_p99_s", "latency\n99%", "99th percentile of the end-to-end latency"),
    _text("overloaded", "over-\nloaded", "whether requests arrive faster than they are answered"),
    _text("meets", "meets\nlimits", "whether the objectives of `--slo` are met"),
    _rate("saturation_requests_per_s", "saturation\nper s", "most requests per second that are answered"),
    _share("cache_occupancy", "cache\nin use", "mean share of the KV cache that is in use"),
    _rate("output_tokens_per_s_per_gpu", "tokens/s\nper GPU", "output tokens per second of one device"),
    _rate("output_tokens_per_s_per_user", "tokens/s\nper user", "output tokens per second of one request"),
    _number("usd_per_h", "USD/h", "USD/h", format_dollars, "price of all devices per hour"),
    _number("usd_per_million_output_tokens", "USD per\n1M tokens", "USD", format_3_digits, "price of a million tokens"),
    _number("joules_per_million_output_tokens", "kJ per\n1M tokens", "J", format_kj, "energy of a million tokens"),
    _number(
        "rate_joules_per_million_output_tokens",
        "kJ per\n1M tokens\nat rate",
        "J",
        format_kj,
        "energy of a million tokens at the rate",
    ),
    _text("is_chosen", "", "`*` marks the deployment that is described", format_mark),
    _count("batch_limit", "batch\nlimit", "most sequences that are answered at the same time"),
    _text("prefill", "prefill pool", "replicas that compute prompts, with their devices"),
    _text("draft", "drafts", "tokens that heads of the network draft per iteration"),
    _text("missed", "misses", "objectives that are not met", format_names),
    _flag("is_on_front", "Pareto\nfront", "whether no other deployment is better in tokens/s per GPU and per user"),
    _wrapped("figure", "figure", "name of the figure"),
    _text("value", "value", "value of the figure, setting or parameter"),
)
"""Language models under traffic."""

_LOCAL = (
    _bytes("file_bytes", "size", "size of the file of the weights"),
    _share("differing_tokens", "tokens\ndiffer", "share of the tokens that differ from those of 16-bit weights"),
    _text("placement", "on device", "how much of the network the device holds"),
    _text("best_weights", "best format", "best format of the weights that fits wholly"),
    _rate("slowest_tokens_per_s", "from\n(90%)", "lower end of the 90% interval of the tokens per second", "tokens/s"),
    _rate("fastest_tokens_per_s", "to\n(90%)", "upper end of the 90% interval of the tokens per second", "tokens/s"),
    _rate("prompt_tokens_per_s", "prompt\ntokens/s", "tokens of the prompt per second"),
    _count("largest_context", "largest\ncontext", "most tokens that fit into the memory of the device"),
)
"""Language models on one's own machine."""

_REINFORCEMENT = (
    _count("rollout_workers", "engines'\ndevices", "devices of the engines that write the rollouts"),
    _count("rollout_tensor", "rollout\ntensor", "devices of tensor parallelism of an engine"),
    _count("context_parallel", "context\nparallel", "devices among which a sequence is divided"),
    _count("steps_off", "steps\noff", "steps by which the weights of the rollouts are older than those of the trainer"),
    _time("of_step_s", "of the step", "time by which a phase makes the step longer"),
    _time("trainer_s", "trainer", "time of the trainer in a step"),
    _time("rollouts_s", "rollouts", "time of the rollouts of a step"),
    _bytes("trainer_bytes", "memory\n(update)", "peak memory of a device of the trainer, in the update"),
)
"""Steps of reinforcement learning."""

_DEVICES = (
    _text("id", "id", "name by which options choose it"),
    _number("fp64_flops", "fp64\nFLOP/s", "FLOP/s", format_si, "dense peak in fp64 of vector units"),
    _number("fp32_flops", "fp32\nFLOP/s", "FLOP/s", format_si, "dense peak in fp32 of vector units"),
    _number("fp16_flops", "fp16\nFLOP/s", "FLOP/s", format_si, "dense peak in fp16 of the faster units"),
    _number("memory_bandwidth", "memory\nB/s", "B/s", format_si, "peak bandwidth of the memory"),
    _bytes("memory_size", "memory\nsize", "size of the memory"),
    _number("rent_usd_per_h", "rent\nUSD/h", "USD/h", format_dollars, "price of one device per hour"),
    _text("cloud", "cloud", "who rents the device out"),
    _text("date", "listed", "day on which the price was listed"),
    _wrapped("note", "note", "remark on the row"),
    _wrapped("key", "key", "name by which the figures name their source"),
    _wrapped("description", "description", "what it is"),
    _number("link_bandwidth", "bandwidth per\ndirection", "B/s", format_bandwidth, "bandwidth in one direction"),
    _text("per", "per", "what has the bandwidth: a device, a node"),
    _text("move", "transfer", "time of the transfer in the larger units"),
    _number("move_s", "exact (s)", "s", format_whole_seconds, "time of the transfer"),
    _text("stands_for_link", "", "`*` marks the calibration that a link has by default", format_mark),
    _time("start_s", "start", "fixed cost of a collective operation"),
    _time("latency_s", "latency", "cost of each step of a collective operation"),
    _wrapped("platform", "measured on", "platform of the measurements"),
    _text("field", "field", "field of the file of the device"),
    _text("severity", "severity", "whether a finding is an error or explained in the file"),
    _wrapped("message", "message", "what the finding says"),
)
"""Devices and links."""

_PROFILES = (
    _text("file", "file", "name of the file"),
    _count("files", "files", "profiles of the group"),
    _text("profile", "profile", "name of the profile"),
    _text("step", "step", "name of the step in the profile"),
    _text("class", "class", "class of the kernels"),
    _text("function", "function", "name of the function on the host"),
    _count("functions", "functions", "functions of the group"),
    _number("rank", "rank", "", str, "place in an order, or number of the process of a job"),
    _count("calls", "calls", "calls of the kernel, operation or function"),
    _count("kernels", "kernels", "different kernels"),
    _number("batch_duration_s", "batch (s)", "s", "{:.4f}".format, "duration of a batch"),
    _text("duration_from", "duration\nfrom", "where the duration of a batch is from"),
    _time("forward_s", "forward", "kernel time of the forward pass"),
    _time("backward_s", "backward", "kernel time of the backward pass"),
    _time("kernel_s", "kernel\ntime", "summed time of the kernels of an iteration"),
    _flag("counts", "counts", "whether the step is one of those of the steady state"),
    _time("self_s", "self time", "time in the function itself"),
    _time("device_total_s", "on the\ndevice", "time on the device of the function and of those that it calls"),
    _time("total_s", "total\ntime", "time in the function and in those that it calls"),
    _time("busy_s", "busy", "time in which any kernel runs"),
    _share("busy_share", "busy", "share of the time in which it is busy"),
    _time("computing_s", "computing", "time in which a rank computes"),
    _time("communication_s", "commu-\nnication", "time in which a rank communicates"),
    _time("waiting_s", "waiting for\nother ranks", "time in which a rank waits in collectives for the last one"),
    _number("flops_per_s", "FLOP/s", "FLOP/s", format_si, "FLOPs per second"),
    _number("bytes_per_s", "B/s", "B/s", format_si, "bytes per second"),
    _share("compute_efficiency", "in\ncompute", "share of the time in kernels with FLOPs"),
    _share("flops_efficiency", "of peak\nFLOP/s", "share of the peak FLOP/s of the device"),
    _share("bandwidth_efficiency", "of peak\nB/s", "share of the peak bandwidth of the device"),
    _share("of_roofline", "of the\nroofline", "share of what the roofline allows"),
    _share("conv_of_peak_forward", "conv. fw.,\nof peak", "share of the peak FLOP/s in forward convolutions"),
    _share("conv_of_peak_backward", "conv. bw.,\nof peak", "share of the peak FLOP/s in backward convolutions"),
    _share("conv_of_peak", "conv. in\niteration", "FLOP/s of convolutions in the time of an iteration, of peak"),
    _share("headroom", "headroom", "share of its time that a kernel would save at its limit", format_percent_rounded),
    _share("occupancy", "occu-\npancy", "resident warps, of those that a device can hold", format_percent_rounded),
    _time("gap_start_s", "at", "start of the gap"),
    _wrapped("cause", "cause", "why the device is idle"),
    _wrapped("host", "host activity", "what the host does in the meantime"),
    _text("before", "next kernel", "kernel that ends the gap"),
    _text("dtype", "type", "type of the elements"),
    _bytes("message_bytes", "message", "bytes of a message"),
    _number("bus_bandwidth_bytes_per_s", "bus\nbandwidth", "B/s", format_bandwidth, "bandwidth of links"),
    _number("requests", "requests\nper step", "", "{:.1f}".format, "mean requests of a step of the engine"),
    _count("tokens", "tokens", "tokens of the steps of the engine"),
    _count("cached_tokens", "cached tokens\nread", "tokens that are read from the KV cache"),
    _bytes("cache_bytes", "KV cache\nread", "bytes that are read from the KV cache"),
    _text("metric", "counter", "name of the counter"),
    _wrapped("good", "good value", "which values are good"),
    _wrapped("remedy", "remedy", "what can be done"),
    _wrapped("remedy_options", "options of train", "options of `train` that ask for a remedy"),
    _number("a_s", "A (s)", "s", format_exact_seconds, "time in profile A"),
    _number("b_s", "B (s)", "s", format_exact_seconds, "time in profile B"),
    _number("b_minus_a_s", "B - A (s)", "s", lambda seconds: f"{seconds:+.6f}", "difference of the two times"),
    _number("b_to_a", "B / A", "1", lambda ratio: f"{ratio:.4f}", "ratio of the two times"),
    _number("spread_s", "spread (s)", "s", format_exact_seconds, "spread of the times of repeated runs"),
    _text("verdict", "verdict", "whether the difference is within the spread of repeated runs"),
    _text("role", "role", "what the file is for the report"),
    _wrapped("sha256", "SHA-256", "hash of the content of the file"),
)
"""Profiles: kernels, operators, ranks, comparisons."""

_CALIBRATIONS = (
    _text("parameter", "parameter", "name of the parameter"),
    _text("quantity", "quantity", "name of the quantity"),
    _text("tool", "tool", "benchmark, or program that wrote the file"),
    _count("rows", "rows", "rows that were read from the file"),
    _text("missing", "not recorded", "what the file does not say"),
    _count("doubts", "doubts", "number of doubts about what the file says"),
    _wrapped("situation", "situation", "what was measured: requests, lengths, devices"),
    _wrapped("command", "command", "command of a benchmark, as it is typed"),
    _wrapped("outcome", "outcome", "what became of a command: done, not installed, no time left, or why it failed"),
    _text("measured_text", "measured", "what the file says, with its unit"),
    _text("forecast_text", "forecast", "what is forecast for the file's own configuration"),
    _text("interval_text", "90% interval", "90% interval of the forecast"),
    _flag("inside", "inside", "whether the measurement lies in the interval"),
    _number("low", "from\n(90%)", "", format_3_digits, "lower end of the 90% interval of the parameter"),
    _number("high", "to\n(90%)", "", format_3_digits, "upper end of the 90% interval of the parameter"),
    _wrapped("unit", "unit", "unit of the parameter"),
    _share("moved", "informed\nby data", "how far data moved it from its prior", format_percent_rounded),
    _wrapped("would_help", "measurements that would help", "measurements that would narrow the interval"),
    _count("points", "points", "number of measurements"),
    _wrapped("phases", "phases", "phases of the measurements"),
    _wrapped("sources", "sources", "where the measurements are from"),
    _share("held_out_error", "held-out\nerror", "mean absolute relative error of what the fit left out"),
    _share("mape", "MAPE", "mean absolute relative error"),
    _share("median", "median", "median absolute relative error"),
    _share("p90_error", "90th\npercentile", "90th percentile of the absolute relative error"),
    _share("bias", "bias", "median relative error", format_error),
    _share("error", "error", "relative error of the predicted time", format_error),
    _number("rank_correlation", "rank\ncorrelation", "1", "{:.3f}".format, "Spearman's correlation of the times"),
    _share("coverage_80", "coverage\nof 80%", "share of measurements in their 80% interval", format_percent_rounded),
    _share("coverage_90", "coverage\nof 90%", "share of measurements in their 90% interval", format_percent_rounded),
    _share("width_90", "interval\nwidth", "mean width of the 90% interval relative to the forecast"),
    _number("sharpness_90", "ratio of\nends", "1", format_ratio, "median ratio between the ends of the 90% interval"),
    _number("factor", "high / low", "1", format_ratio, "ratio between the ends of the 90% interval"),
    _share("error_before", "error\nas shipped", "mean error of measured rows without a calibration by them"),
    _share("error_after", "error\nafter", "mean error of measured rows, each forecast by the others"),
    _share("inside_before", "within 90%\nas shipped", "share in the 90% interval as shipped", format_percent_rounded),
    _share("inside_after", "within 90%\nafter", "share in the 90% interval by the others", format_percent_rounded),
    _number("ends_before", "ratio of ends\nas shipped", "1", format_ratio, "ratio of the ends of the 90% interval"),
    _number("ends_after", "ratio of ends\nafter", "1", format_ratio, "ratio of the ends by the other rows"),
    _text("moved_cause", "seconds of", "cause of a part of the time, such as attention or the host"),
    _number("cause_factor", "times", "1", format_ratio, "factor of the seconds of a cause"),
    _number("deviations", "deviations", "1", "{:+.1f}".format, "how far it moved, in deviations of what was known"),
    _share("one_ppp", "one PPP", "error of a single PPP fitted to the same measurements"),
    _share("roofline", "roofline", "error of the roofline model"),
    _share("per_class_ppp", "PPP per\nclass", "error of a PPP for each class of work"),
    _share("shipped", "shipped\nconstants", "error of the constants that are shipped"),
    _time("measured_s", "measured", "measured time"),
    _time("predicted_s", "predicted", "predicted time"),
    _number("predicted_interval", "predicted (90%)", "s", str, "predicted time with its 90% interval"),
    _flag("within", "in\ninterval", "whether the measured time lies in the interval"),
    _time("difference_s", "difference", "measured minus predicted time"),
    _number("ratio", "measured /\npredicted", "1", format_ratio, "ratio of the measured to the predicted time"),
    _number("ppp", "PPP", "1", format_3_digits, "platform percent of peak: time at peak divided by the measured time"),
    _time("at_peak_s", "at peak", "time at peak: FLOPs / peak + bytes / bandwidth"),
    _wrapped("why", "likely cause", "likely cause of the error"),
    _number("number", "", "", str, "place in the order of the rows"),
    _time("measuring_s", "measuring", "how long the measurement takes"),
    _text("probe", "probe", "layer that was timed to find a rate of the machine"),
    _share("spread", "spread", "spread of repeated timings, relative to their median"),
    _count("calls_per_sample", "calls\neach", "calls that one timing covers"),
)
"""Calibrations, measurements and their errors."""

_OTHERS = (
    _text("way", "method", "how several products are computed"),
    _text("size", "M x N x K", "sizes of the matrix product"),
    _count("m", "M", "rows of the matrix product"),
    _count("n", "N", "columns of the matrix product"),
    _count("k", "K", "terms of each sum of the matrix product"),
    _count("tiles", "tiles", "tiles of the output that the kernel computes"),
    _count("waves", "waves", "rounds in which all multiprocessors compute a tile"),
    _share("filled", "filled", "share of the multiprocessors that work on average", format_percent_rounded),
    _text("stage", "stage", "stage of the input pipeline"),
    _flag("beside", "runs in\nparallel", "whether the stage runs while others do"),
    _wrapped("rule", "rule", "rule of thumb"),
    _wrapped("found", "this pipeline", "what the rule says of this pipeline"),
    _flag("holds", "holds", "whether the rule holds"),
    _share("utilisation", "device\nutilisation", "share of the time in which the device computes"),
    _text("bottleneck", "next\nbottleneck", "slowest stage with the remedy"),
    _text("change", "change", "change of the setting"),
    _text("setting", "setting", "name of the setting"),
    _text("offload_placement", "placement", "what of a pipeline is on the device at the same time"),
    _text("term", "term", "term of the arithmetic"),
    _text("arithmetic", "arithmetic", "formula of the term, with its numbers"),
)
"""Matrix products, input pipelines, explanations."""

_FILES = (
    _text("engine", "engine", "engine of the server, or of one's own machine"),
    _text("kv_cache", "KV cache", "format of the KV cache"),
    _text("calibration", "calibration", "source of the parameters of the time model"),
    _text("price", "price", "price of a device, with the cloud that asks it and its date"),
    _text("reason", "reason", "why the row has no answer"),
    _text("version", "version", "version of paleo-lite"),
    _count("speedup_over", "speed-up\nover", "workers of the row that the speed-up is relative to"),
    _time("ttft_p99_s", "first token\n99%", "99th percentile of the time to the first token"),
    _time("tpot_p99_s", "per token\n99%", "99th percentile of the time per token after the first"),
    _time("latency_p50_s", "latency\nmedian", "median end-to-end latency"),
    _rate("output_tokens_per_s", "output\ntokens per s", "output tokens per second of all devices"),
    _rate("requests_per_s", "answered\nper s", "requests that are answered per second"),
    _time("prompt_low_s", "prompt\nfrom", "lower end of the 90% interval of the time of the prompt"),
    _time("prompt_high_s", "prompt\nto", "upper end of the 90% interval of the time of the prompt"),
    _count("gpu_blocks", "blocks on\nthe device", "transformer blocks that the device holds"),
    _bytes("host_bytes", "host\nmemory", "bytes in the memory of the host"),
    _time("generation_s", "generation", "time in which the engines write the rollouts"),
    _rate("tokens_per_s_per_device", "tokens/s\nper device", "tokens of prompts and responses per second and device"),
    _bytes("rollout_bytes", "memory\n(rollouts)", "peak memory of a device in the rollouts"),
    _number("usd_per_step", "USD\nper step", "USD", format_number, "price of a step"),
)
"""Columns of files of rows that no table has. ``NAME_low`` and ``NAME_high`` are the ends of a 90% interval."""

GROUPS = {
    "The question": _QUESTION,
    "The answer": _RESULTS,
    "Steps of several workers": _STEPS_OF_WORKERS,
    "Networks and layers": _COUNTS,
    "Language models under traffic": _SERVING,
    "Language models on one's own machine": _LOCAL,
    "Reinforcement learning": _REINFORCEMENT,
    "Devices and links": _DEVICES,
    "Profiles": _PROFILES,
    "Calibrations and errors": _CALIBRATIONS,
    "Matrix products, input pipelines, explanations": _OTHERS,
    "Files of rows": _FILES,
}
"""The columns by their subjects, which are the titles of the sections of the reference page."""

COLUMNS = {column.key: column for group in GROUPS.values() for column in group}
"""The columns by name, which is the key of their value in most tables."""
