"""`rl`: a step of reinforcement learning of a language model."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from ..errors import BadValue
from ..units import check_integer
from .compare import check_no_pipeline, compare, is_pipeline
from .kind import QuestionKind, make_function
from .option import command_words
from .records import settings_of
from .rl_options import Rl

if TYPE_CHECKING:
    from ..reinforcement.answer import RlAnswer, RlRow
    from ..sweeps.comparison import Comparison


def answer(question: Rl) -> RlAnswer | Comparison:
    """Return the prediction of a step, several of them side by side, or a ranking of divisions."""
    several = question.several()
    for network in several.get("network", [question.network]):
        check_no_pipeline(network, "rl")
    return compare(question, _answer)


def _answer(question: Rl) -> RlAnswer:
    """Return the prediction of one step."""
    if question.network is None:
        raise BadValue("`rl` needs a language model, such as qwen3-8b")
    if question.steps_off is not None:
        check_integer("`--steps-off`", question.steps_off, 0)
    _check_algorithm(question)
    from ..api.question import resolve_network
    from ..api.reinforcement_remedies import advise, answer_rl

    network = resolve_network(question.network, None, ())
    if not network.is_language_model:
        raise BadValue(f"`rl` needs a language model that writes text; {network.name} is not one")
    if len(settings_of(question.reward)) > 1:
        raise BadValue("give only one of model and seconds of `--reward`")
    scorer = settings_of(question.reward).get("model")
    if scorer is not None and (is_pipeline(scorer) or not resolve_network(scorer, None, ()).is_language_model):
        raise BadValue(f"`--reward` model=NETWORK must be a language model (got {scorer})")
    asked, question = question, _with_evidence(question)
    speculation = settings_of(question.speculation)
    if speculation and "tokens" not in speculation:
        raise BadValue("`--speculation` needs tokens=N, the tokens drafted per iteration")
    tools = settings_of(question.tools)
    if tools and (tools.get("turns", 1) < 2 or "seconds" not in tools):
        raise BadValue(
            "`--tools` needs turns=N of at least 2, and seconds=TIME, which a tool takes between two of them"
        )
    if question.advise:
        chosen = [name for name in _ADVISED if name in question.given()]
        if chosen:
            raise BadValue(f"`--advise` chooses `--{chosen[0].replace('_', '-')}` itself: leave it out")
        advised = advise(question)
        return msgspec.structs.replace(advised, command=_advised_command(asked, advised.divisions[0]))
    return answer_rl(_with_usual_division(question))


def _advised_command(question: Rl, best: RlRow) -> str:
    """Return the command line that asks for the division that advice recommends alone."""
    chosen = {name: getattr(best, name) for name in (*_ADVISED, "steps_off")}
    return shlex.join(command_words("rl", replace(question, advise=False, **chosen)))


def _with_usual_division(question: Rl) -> Rl:
    """Return the question with half of the devices for the engines of a framework that gives them devices of their own.

    prime-rl trains on one device and generates on another unless it is told otherwise.
    """
    takes_turns = question.framework_rules.takes_turns or not question.rules.rolls_out
    if takes_turns or question.rollout_workers is not None:
        return question
    if question.workers < 2:
        raise BadValue(
            f"`--framework {question.framework}` generates on devices of their own: give 2 `--workers`, or more"
        )
    return replace(question, rollout_workers=question.workers // 2)


def _with_evidence(question: Rl) -> Rl:
    """Return the question with its calibration read, if it is one from result files; check that it informs a part."""
    if question.calibration is None:
        return question
    from ..calibration.store import evidence_of

    evidence = evidence_of(question.calibration)
    if evidence is None:
        return question
    of_rollouts = ("server",) if question.rules.rolls_out else ()
    evidence.check_kinds((*of_rollouts, "train", "link", "power"), "rl")
    return replace(question, calibration=evidence)


_OF_ROLLOUTS = (
    "rollout_workers", "rollout_tensor", "rollout_precision", "steps_off", "engine", "engine_settings", "speculation",
    "tools", "reward", "advise",
)  # fmt: skip
"""Options of generation."""


def _check_algorithm(question: Rl) -> None:
    """Check that no option is given of a part that the algorithm does not have."""
    algorithm = question.rules
    of_rollouts = [name for name in _OF_ROLLOUTS if name in question.given()]
    if of_rollouts and not algorithm.rolls_out:
        name = of_rollouts[0].replace("_", "-")
        raise BadValue(
            f"`--{name}` is for rollouts, and `--algorithm {question.algorithm}` learns from given responses"
        )
    if question.reference and not algorithm.can_have_reference:
        raise BadValue(f"`--reference yes` is not for `--algorithm {question.algorithm}`, which has no penalty")


_ADVISED = ("tensor", "pipeline", "context_parallel", "expert_parallel", "rollout_tensor", "rollout_workers")
"""Options that advice chooses."""

rl = make_function("rl", Rl, answer)

RL = QuestionKind(
    name="rl",
    record=Rl,
    answer=answer,
    summary="Predict a step of reinforcement learning: rollouts, update, transfer of weights, memory and cost.",
    examples=(
        "qwen3-8b --gpu h100-sxm --workers 8 --prompts 64 --samples-per-prompt 16 --response-tokens 2000",
        "qwen3-30b-a3b --gpu h100-sxm --workers 32 --samples-per-prompt 32 --prompt-tokens 105 --response-tokens 3200 "
        "--max-tokens 4096 --updates-per-step 4 --expert-parallel 8 --rollout-tensor 2 --framework nemo-rl",
        "qwen3-8b --gpu h100-sxm --workers 16 --rollout-workers 4,8,12 --steps-off 1 --response-tokens 2000",
        "qwen3-30b-a3b --gpu h100-sxm --workers 32 --framework nemo-rl --response-tokens 3200 --max-tokens 4096 "
        "--advise",
    ),
)
