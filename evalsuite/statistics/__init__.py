"""Statistics of two arms on the same questions: counts in, small frozen results out.

Everywhere `lost` counts the pairs that the baseline alone got right, `gained` those that the candidate alone got
right, `pairs` all of them. A difference is candidate - baseline accuracy, (gained - lost) / pairs: negative is worse.
A margin is the largest loss accepted, a fraction. Invalid input raises ValueError. Each file holds one kind of
statistic; nothing here knows of questions, responses or files.
"""

from ._clusters import Clustered, rao_scott, rao_scott_clusters, samples_to_prove
from ._counts import Counts
from ._evidence import (
    ConfidenceSequence,
    Evidence,
    best_bet,
    confidence_sequence,
    loss_wealth,
    mixture_evidence,
    noninferiority_wealth,
    watch,
)
from ._exact import EXACT_PAIRS, exact_mcnemar_p, exact_noninferiority_p
from ._intervals import bonett_price_interval, newcombe_interval
from ._mcnemar import McNemar, mcnemar
from ._missing import Errored, best_case, intention_to_treat, tipping_point, worst_case
from ._noninferiority import (
    LEAST_MARGIN,
    Equivalence,
    NonInferiority,
    equivalence,
    noninferiority,
    questions_needed,
    smallest_margin,
)
from ._power import (
    Test,
    connor_pairs,
    miettinen_pairs,
    most_lost,
    nam_liu_pairs,
    noninferiority_power,
    pairs_to_detect,
    pairs_to_prove,
    regression_power,
    smallest_detectable_loss,
    smallest_provable_margin,
)
from ._ratio import Ratio, ratio_of_totals
from ._sequential import GroupSequential, group_sequential
from ._stopping import Stopping, stopping
from ._tango import Interval, tango_interval, tango_score
from ._tasks import Stratified, holm, pooled, stratified_interval, stratified_score

__all__ = [
    "EXACT_PAIRS",
    "LEAST_MARGIN",
    "Clustered",
    "ConfidenceSequence",
    "Counts",
    "Equivalence",
    "Errored",
    "Evidence",
    "GroupSequential",
    "Interval",
    "McNemar",
    "NonInferiority",
    "Ratio",
    "Stopping",
    "Stratified",
    "Test",
    "best_bet",
    "best_case",
    "bonett_price_interval",
    "confidence_sequence",
    "connor_pairs",
    "equivalence",
    "exact_mcnemar_p",
    "exact_noninferiority_p",
    "group_sequential",
    "holm",
    "intention_to_treat",
    "loss_wealth",
    "mcnemar",
    "miettinen_pairs",
    "mixture_evidence",
    "most_lost",
    "nam_liu_pairs",
    "newcombe_interval",
    "noninferiority",
    "noninferiority_power",
    "noninferiority_wealth",
    "pairs_to_detect",
    "pairs_to_prove",
    "pooled",
    "questions_needed",
    "rao_scott",
    "rao_scott_clusters",
    "ratio_of_totals",
    "regression_power",
    "samples_to_prove",
    "smallest_detectable_loss",
    "smallest_margin",
    "smallest_provable_margin",
    "stopping",
    "stratified_interval",
    "stratified_score",
    "tango_interval",
    "tango_score",
    "tipping_point",
    "watch",
    "worst_case",
]
