"""What a reader of the documentation has: a folder with a job, a recipe, scripts and settings."""

import json
import re
import shutil

from tests.cli.documented import README, ROOT

IMPORTS = ROOT / "tests" / "fixtures" / "imports"

# As torchrun starts it, with the options that pages give it. An optimizer of torch would take a
# second to import.
SCRIPT = '''"""A script for torchrun."""

import argparse

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--train_batch_size", type=int, default=8)
parser.add_argument("--dataloader_num_workers", type=int)
parser.add_argument("--resume", "--resume_from_checkpoint")
args = parser.parse_args()
dist.init_process_group("gloo")
print(f"rank {dist.get_rank()} of {dist.get_world_size()}")
weight = torch.ones(8, requires_grad=True)
for step in range(1, args.epochs + 1):
    loss = (torch.randn(args.train_batch_size, 8) @ weight).square().mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    dist.all_reduce(gradient)
    weight.data -= 0.1 / dist.get_world_size() * gradient
    print(f"step {step}/{args.epochs} loss {loss.item():.4f}")
dist.destroy_process_group()
'''
VOC = """<annotation><filename>{name}.jpg</filename>
<size><width>40</width><height>20</height><depth>3</depth></size>
<object><name>car</name><difficult>0</difficult>
<bndbox><xmin>11</xmin><ymin>6</ymin><xmax>30</xmax><ymax>15</ymax></bndbox></object>
</annotation>"""


def python_of_readme(holds):
    """The README's block of Python that holds this."""
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text("utf-8"), re.M | re.S)
    return next(block for block in blocks if holds in block)


def write_jobs(folder):
    """A job of digits, settings of other tools, and a recipe of one's own: the README's."""
    shutil.copy(ROOT / "src/phalanx/recipes/digits/job.yaml", folder / "job.yaml")
    settings = '{"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}'
    (folder / "ds_config.json").write_text(settings)
    shutil.copy(IMPORTS / "planner.yaml", folder / "config.yaml")
    shutil.copy(IMPORTS / "accelerate.yaml", folder / "accelerate_config_single_node.yaml")
    recipe = python_of_readme("(Recipe)").replace("SpiralsRecipe", "MyRecipe")
    (folder / "my_recipe.py").write_text(recipe, encoding="utf-8")


def write_scripts(folder):
    (folder / "my_package").mkdir()
    for name in ("train.py", "main.py", "my_package/__init__.py", "my_package/train.py"):
        (folder / name).write_text("" if "__init__" in name else SCRIPT)


def write_boxes(folder):
    """Pictures with boxes, as VOC and COCO describe them."""
    from PIL import Image

    names = [f"p{number}" for number in range(40)]
    for place in ("JPEGImages", "train", "val", "Annotations"):
        (folder / place).mkdir()
    for name in names:
        (folder / "Annotations" / f"{name}.xml").write_text(VOC.format(name=name))
        for place in ("JPEGImages", "train", "val"):
            Image.new("RGB", (40, 20)).save(folder / place / f"{name}.jpg")
    record = {
        "images": [
            {"id": number, "file_name": f"{name}.jpg", "width": 40, "height": 20}
            for number, name in enumerate(names)
        ],
        "categories": [{"id": 3, "name": "car"}],
        "annotations": [
            {"id": number, "image_id": number, "category_id": 3, "bbox": [4, 4, 8, 8], "iscrowd": 0}
            for number in range(len(names))
        ],
    }
    for split in ("train", "val"):
        (folder / f"instances_{split}.json").write_text(json.dumps(record))
