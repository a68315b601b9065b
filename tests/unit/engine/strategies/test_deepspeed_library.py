"""DeepSpeed's loss scale in a checkpoint: DeepSpeed goes on as if unbroken, torch can go on too."""

import pytest
import torch

from phalanx.engine.strategies.deepspeed_library import LossScale


@pytest.fixture(autouse=True)
def _no_process_group(monkeypatch):
    monkeypatch.setattr("deepspeed.runtime.fp16.loss_scaler.dist.get_rank", lambda: 1)


def scaler(**settings):
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    return DynamicLossScaler(init_scale=2**10, scale_window=3, min_scale=1, **settings)


HISTORY = [False, True, True, False, False, False, False, True, False, True, False, False, False]


@pytest.mark.parametrize("stop", range(len(HISTORY) + 1))
def test_a_loaded_scale_goes_on_as_if_unbroken(stop):
    unbroken = scaler(delayed_shift=2, consecutive_hysteresis=False)
    seen = []
    saved = None
    for step, overflow in enumerate([*HISTORY, *HISTORY]):
        if step == stop:
            saved = LossScale(unbroken).state_dict()
        unbroken.update_scale(overflow)
        seen.append(unbroken.cur_scale)
    resumed = scaler(delayed_shift=2, consecutive_hysteresis=False)
    LossScale(resumed).load_state_dict(saved)
    again = []
    for overflow in [*HISTORY, *HISTORY][stop:]:
        resumed.update_scale(overflow)
        again.append(resumed.cur_scale)
    assert again == seen[stop:]


def test_torch_and_deepspeed_take_over_from_each_other():
    own = scaler(delayed_shift=1, consecutive_hysteresis=False)
    own.update_scale(False)
    torchs = torch.amp.GradScaler("cpu")
    torchs.load_state_dict(LossScale(own).state_dict())
    assert (torchs.get_scale(), torchs.state_dict()["_growth_tracker"]) == (2**10, 1)
    other = scaler(delayed_shift=1, consecutive_hysteresis=False)
    LossScale(other).load_state_dict(torchs.state_dict())
    assert (LossScale(other).get_scale(), LossScale(other).is_enabled()) == (2**10, True)
