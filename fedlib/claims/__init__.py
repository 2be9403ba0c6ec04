"""The ledger of claims: what the sources say, and what the stored runs say to it.

``data/claims/*.yml`` holds the statements with their tests (:mod:`~fedlib.claims.ledger`), written in a small language
(:mod:`~fedlib.claims.expressions`); :mod:`~fedlib.claims.verdicts` computes the verdicts over records, and
:mod:`~fedlib.claims.pages` shows them. No verdict is stored: each is computed when it is asked for.
"""

from fedlib.claims.ledger import Claim, load
from fedlib.claims.pages import show
from fedlib.claims.verdicts import Verdict, evaluate, evaluate_all

__all__ = ["Claim", "Verdict", "evaluate", "evaluate_all", "load", "show"]
