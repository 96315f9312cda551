"""`measurements`: what the files of benchmarks say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..files import to_paths
from ..questions.kind import make_function
from ..questions.measured import RecordedFacts, ResultFilesQuestion
from ..questions.option import options_of

if TYPE_CHECKING:
    from ..result_files.detect import Measurements


def answer(question: ResultFilesQuestion) -> Measurements:
    """Return what the files say.

    Raise PaleoError for a file that no reader recognises, or one that cannot be read.
    """
    from ..result_files.detect import read_results

    facts = options_of(RecordedFacts)
    user_facts = {name: getattr(question, name) for name in question.given() if name in facts}
    return read_results(to_paths(question.paths), user_facts, question.jobs, question.scheduler, question.keep_going)


measurements = make_function("measurements", ResultFilesQuestion, answer)
