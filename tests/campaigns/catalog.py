"""The campaigns that there are."""

from __future__ import annotations

from tests.campaigns.campaign import Campaign
from tests.campaigns.crash_states import CrashStates
from tests.campaigns.power_loss import PowerLoss

CAMPAIGNS: tuple[type[Campaign], ...] = (CrashStates, PowerLoss)
