"""Data: loader processes, samples that cannot be read, labels that do not fit."""

from __future__ import annotations

from phalanx.diagnose.causes.row import Cause

_ALONE = "{again} loader.workers=0 says where, in one process"
_SCRIPT_ALONE = "num_workers=0 says where, in one process"

CAUSES = (
    Cause(
        name="loader-crashed",
        any_of=(
            r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: (?!Killed|Bus|Terminated)"
            r"(?P<signal>[\w ]+)",
        ),
        words="a loader process ({pid}) crashed in native code ({signal}): a decoder, or a library "
        "that may not be used after a fork",
        fix=_ALONE,
        script_fix=_SCRIPT_ALONE,
        text="RuntimeError: DataLoader worker (pid 77) is killed by signal: Segmentation fault. ",
        source="failure 21; libtorch_python DataLoader.cpp",
    ),
    Cause(
        name="loader-exited",
        any_of=(
            r"DataLoader worker \(pid\(s\) (?P<pid>[\d, ]+)\) exited unexpectedly",
            r"[Pp]in memory thread exited unexpectedly",
        ),
        grade="symptom",
        words="a loader process ({pid}) is gone and said nothing: it called exit, or was ended",
        fix=_ALONE,
        script_fix=_SCRIPT_ALONE,
        text="RuntimeError: DataLoader worker (pid(s) 4242) exited unexpectedly",
        source="failure 23; torch/utils/data/dataloader.py",
    ),
    Cause(
        name="loader-timeout",
        any_of=(r"DataLoader timed out after (?P<seconds>\d+) seconds",),
        words="a loader process gave no batch for {seconds} s: slow storage, or it is stuck",
        fix="look at the storage (`iostat -x 1`); {again} loader.workers=0 says which sample it is",
        script_fix="look at the storage (`iostat -x 1`); num_workers=0 says which sample it is",
        text="RuntimeError: DataLoader timed out after 60 seconds",
        source="torch/utils/data/dataloader.py",
    ),
    Cause(
        name="samples-differ-in-shape",
        any_of=(
            r"stack expects each tensor to be equal size, but got (?P<first>\[[\d, ]*\]) at entry "
            r"(?P<one>\d+) and (?P<second>\[[\d, ]*\]) at entry (?P<other>\d+)",
            r"each element in list of batch should be of equal size",
        ),
        words="samples of one batch differ in shape: {first} at {one} and {second} at {other}; "
        "{sample}",
        fix="give every sample the same shape in the data set, or pad them in `__getitems__`",
        script_fix="give every sample the same shape, or pass a collate_fn that pads",
        text="RuntimeError: stack expects each tensor to be equal size, but got [3, 224, 224] at "
        "entry 0 and [1, 224, 224] at entry 3",
        source="torch/utils/data/_utils/collate.py, as torch.stack says it",
    ),
    Cause(
        name="label-out-of-range",
        any_of=(
            r"Target (?P<value>-?\d+) is out of bounds",
            r"nll_loss.*Assertion `?t >= 0 && t < n_classes`? failed",
            r"cur_target >= 0 && cur_target < n_classes",
            r"ClassNLLCriterion.*Assertion.*failed",
        ),
        is_said_before=True,
        words="a label is not one of the classes of the model: {value}; {sample}",
        fix="labels must be 0 to classes - 1: print `labels.min(), labels.max()` of the data set "
        "beside the width of the last layer",
        text="IndexError: Target 10 is out of bounds.",
        source="aten/src/ATen/native/LossNLL.cpp; cuda/Loss.cu",
    ),
    Cause(
        name="index-out-of-range",
        any_of=(
            r"index out of range in self",
            r"Assertion `?srcIndex < srcSelectDimSize`? failed",
            r"Assertion `?.*index out of bounds\"?`? failed",
        ),
        is_said_before=True,
        words="an id is larger than the table it is looked up in (tokens beside the embedding, as "
        "a rule); {sample}",
        fix="`model.resize_token_embeddings(len(tokenizer))`, or print the largest id of the data",
        text="IndexError: index out of range in self",
        source="aten/src/ATen/native/TensorAdvancedIndexing; cuda/Indexing.cu",
    ),
    Cause(
        name="corrupt-sample",
        any_of=(
            r"UnidentifiedImageError: cannot identify image file (?P<file>.+)",
            r"OSError: image file is truncated",
            r"(broken|corrupt) (data stream|PNG|JPEG|image)",
            r"(?<!\w)JSONDecodeError: (?P<said>.{0,120})",
            r"UnicodeDecodeError: (?P<said>.{0,120})",
            r"(BadZipFile|zlib\.error|EOFError: Compressed file|ReadError: )(?P<said>.{0,80})",
            r"ArrowInvalid: (?P<said>.{0,120})",
            r"ParserError: (?P<said>.{0,120})",
        ),
        words="a file of the data cannot be read: it is damaged, or not of the kind it is taken "
        "for; {sample}",
        fix="look at that file (`file PATH`), mend or remove it, then `{again}`",
        text="PIL.UnidentifiedImageError: cannot identify image file 'data/cat.117.jpg'",
        source="Pillow, json, zipfile, pyarrow, pandas",
    ),
    Cause(
        name="file-missing",
        any_of=(r"FileNotFoundError: \[Errno 2\] No such file or directory: (?P<file>.+)",),
        words="a file that is asked for is not there: {file}; {sample}",
        fix="ls -l {file}; data and outputs are looked for from the folder that the command was "
        "started in, so give whole paths",
        text="FileNotFoundError: [Errno 2] No such file or directory: '/data/train/00017.npy'",
        source="CPython; asked about: data path",
    ),
    Cause(
        name="no-samples",
        any_of=(
            r"num_samples should be a positive integer value, but got num_samples=0",
            r"(?i)found 0 (files|images|samples)|dataset is empty|no (images|samples) found",
        ),
        words="the data set has no samples: the path is right for Python and wrong for the data",
        fix="count them first: `find DATA -type f | wc -l`; then check patterns and endings",
        text="ValueError: num_samples should be a positive integer value, but got num_samples=0",
        source="torch/utils/data/sampler.py",
    ),
    Cause(
        name="not-picklable",
        any_of=(
            r"(Can't|cannot) pickle (?P<thing>.{0,80})",
            r"PicklingError: (?P<thing>.{0,120})",
        ),
        words="loader processes are sent the data set, and a part of it cannot be sent: {thing}",
        fix="define functions at the top of a file, no lambda; open files in the first "
        "`__getitem__`; or loader.workers=0",
        script_fix="define functions at the top of a file, no lambda; open files in the first "
        "`__getitem__`; or num_workers=0",
        text="AttributeError: Can't pickle local object 'main.<locals>.<lambda>'",
        source="CPython Lib/multiprocessing",
    ),
    Cause(
        name="data-error",
        any_of=(
            r"Caught (?P<error>\w+) in DataLoader worker process (?P<worker>\d+)",
            r"phalanx: while fetching sample",
        ),
        grade="symptom",
        words="the data set failed while a sample was fetched: {last_error}; {sample}",
        fix="try that sample alone, in Python; the line is above; then `{again}`",
        text="ValueError: Caught ValueError in DataLoader worker process 0.",
        source="torch/_utils.py, ExceptionWrapper; engine/data/micro_batches.py",
    ),
)
