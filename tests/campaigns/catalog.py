"""The campaigns that there are."""

from __future__ import annotations

from tests.campaigns.campaign import Campaign
from tests.campaigns.crash_states import CrashStates
from tests.campaigns.kills import Kills
from tests.campaigns.linearizability import Linearizability

CAMPAIGNS: tuple[type[Campaign], ...] = (CrashStates, Kills, Linearizability)
