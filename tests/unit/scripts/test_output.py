"""What is read from lines that trainings really print."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.scripts.output import OutputReader, read_line, read_results

# line, step, total, epoch, loss
LINES = [
    ("  5%|▌ | 5/100 [00:01<00:20, 4.5it/s, loss=0.12]", 5, 100, None, 0.12),
    ("Epoch 1:  50%|█████     | 16/32 [00:01<00:01, v_num=0, train_loss=0.5]", 16, 32, 1, 0.5),
    ("Epoch 1/1 ━━━━━━━━━ 8/8 0:00:00 • 0:00:00 146.16it/s train_loss: 0.132", 8, 8, 1, 0.132),
    (
        "{'loss': 0.69, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}",
        None,
        None,
        0.1,
        0.69,
    ),
    ("{'loss': '3.246', 'grad_norm': '0.7', 'epoch': '0.25'}", None, None, 0.25, 3.246),
    ('{"step": 7, "loss": 1.5}', 7, None, None, 1.5),
    ("INFO:root:{'step': 7, 'train/loss': 1.5}", 7, None, None, 1.5),
    ("step=10 loss=0.5 lr=1e-3", 10, None, None, 0.5),
    ("step: 10, loss: 5.0e-01", 10, None, None, 0.5),
    ("step 3/8 | loss 1.25 | lr 5.0e-02", 3, 8, None, 1.25),
    ("iter 250: loss 2.3412, time 5.20ms, mfu 1.20%", 250, None, None, 2.3412),
    ("Epoch [2/5], Step [100/600], Loss: 0.2971", 100, 600, 2, 0.2971),
    ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.139", None, None, 1, 2.139),
    ("Epoch: [0][ 10/500]\tTime 0.1 (0.2)\tLoss 6.9e+00 (6.95e+00)", 10, 500, 0, 6.9),
    ("2026-01-31 12:00:00,123 - INFO - epoch: 3 - step: 40 - loss: nan", 40, None, 3, math.nan),
    ("\x1b[32mstep 4\x1b[0m loss 0.25", 4, None, None, 0.25),
]

NOTHING = [
    "",
    "loading weights",
    "the loss 0.5 of nothing in particular",
    "Map: 100%|██████████| 1000/1000 [00:01<00:00, 900 examples/s]",
    "Loading checkpoint shards: 50%|█████     | 1/2 [00:01<00:01, 1.0s/it]",
    "Validation DataLoader 0: 50%|█████     | 1/2 [00:01<00:01, 1.0it/s]",
    "{'train_runtime': 0.44, 'train_samples_per_second': 144.7, 'train_loss': 3.2, 'epoch': 1}",
    "step 10 of the tutorial",
    "{'loss': [1, 2]}",
]


@pytest.mark.parametrize(("line", "step", "total", "epoch", "loss"), LINES)
def test_a_real_line(line, step, total, epoch, loss):
    found = read_line(line)
    assert (found.step, found.total, found.epoch) == (step, total, epoch)
    assert found.loss == pytest.approx(loss, nan_ok=True)


@pytest.mark.parametrize("line", NOTHING)
def test_a_line_that_says_nothing_of_a_training(line):
    assert read_line(line) is None


def test_rates_norms_and_evaluations():
    found = read_line("{'loss': 1, 'grad_norm': 2.5, 'learning_rate': 5e-05, 'epoch': 1}")
    assert (found.lr, found.grad_norm, found.is_evaluation) == (5e-05, 2.5, False)
    found = read_line("{'eval_loss': 3.2, 'eval_accuracy': 0.5, 'eval_runtime': 1.0, 'epoch': 2}")
    assert found.is_evaluation
    assert found.metrics == {"eval_loss": 3.2, "eval_accuracy": 0.5}


def test_the_losses_of_hf_trainer_get_the_step_of_the_bar_that_follows():
    reader = OutputReader()
    lines = [
        "  0%|          | 0/8 [00:00<?, ?it/s]",
        " 12%|█▎        | 1/8 [00:00<?, ?it/s]",
        "{'loss': '3.2', 'epoch': '0.25'}",
        " 25%|██▌       | 2/8 [00:00<00:00, 13.40it/s]",
        "  0%|          | 0/4 [00:00<?, ?it/s]",
        " 50%|██▌       | 2/4 [00:00<?, ?it/s]",
        "{'eval_loss': '3.1', 'epoch': '0.25'}",
    ]
    found = [reading for line in lines for reading in reader.take(line)] + reader.end()
    assert [(f.step, f.loss) for f in found if f.loss] == [(2, 3.2)]
    assert [(f.step, f.metrics) for f in found if f.metrics] == [(2, {"eval_loss": 3.1})]
    assert max(f.step for f in found) == 2, "the bar of the evaluation is not the training's"


def test_a_bar_for_each_epoch_counts_on():
    reader = OutputReader()
    lines = [
        f"Epoch {epoch}: {n}|x| {n}/3 [00:00<00:00, loss={epoch + n}]".replace(
            f"{n}|", f"{n}0%|", 1
        )
        for epoch in range(3)
        for n in range(1, 4)
    ]
    found = [reading for line in lines for reading in reader.take(line)]
    assert [reading.step for reading in found] == list(range(1, 10))
    assert found[-1].loss == 5.0


def test_results_of_ultralytics_grow_by_whole_rows():
    text = (
        "                  epoch,      time,  train/box_loss,  train/cls_loss,  metrics/mAP50(B)\n"
        "                      1,      10.5,             1.5,            2.25,             0.125\n"
        "                      2,      20.5,             1.0,            2.00,             0.2"
    )
    (row,) = read_results(text)
    assert (row.epoch, row.loss, row.metrics) == (1.0, 3.75, {"metrics/map50(b)": 0.125})
    assert len(read_results(text + "50\n")) == 2


PIECES = st.sampled_from(
    [
        *("loss", "step", "=", ":", " ", "{", "}", "'", '"', "%|", "|", "/", "[", "]", "nan"),
        *("1e999", "Epoch", "9" * 400, "0", "-", ".", ",", "\r", "\x1b[", "━", "eval_loss"),
        *("(" * 300, "²", "٣"),
    ]
)


@given(st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join)))
def test_no_text_raises(text):
    reader = OutputReader()
    for _ in range(2):
        reader.take(text)
    reader.end()
    read_results(text)
