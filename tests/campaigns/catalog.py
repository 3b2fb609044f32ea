"""The campaigns that there are."""

from __future__ import annotations

from tests.campaigns.campaign import Campaign
from tests.campaigns.crash_states import CrashStates
from tests.campaigns.damage import DamagedDirectories
from tests.campaigns.kills import Kills
from tests.campaigns.linearizability import Linearizability
from tests.campaigns.model_runs import ModelRuns
from tests.campaigns.power_loss import PowerLoss
from tests.campaigns.soak import Soak

CAMPAIGNS: tuple[type[Campaign], ...] = (
    CrashStates,
    ModelRuns,
    DamagedDirectories,
    Kills,
    Linearizability,
    PowerLoss,
    Soak,
)
