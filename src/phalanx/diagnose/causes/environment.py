"""What is installed and set: packages, driver, CUDA, precision, rights, the way to the internet."""

from __future__ import annotations

from phalanx.diagnose.causes.row import Cause

CAUSES = (
    Cause(
        name="module-missing",
        any_of=(r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'",),
        words="the package `{module}` is not in this Python: {python}",
        fix="{python} -m pip install {module}; or start phalanx from the environment that has it",
        script_fix="{python} -m pip install {module}; or name the environment that has it: "
        "`phalanx launch --python ENV/bin/python ...`",
        text="ModuleNotFoundError: No module named 'timm'",
        source="CPython; asked about: no module torch",
    ),
    Cause(
        name="library-missing",
        any_of=(
            r"(?P<library>lib[\w.+-]+): cannot open shared object file",
            r"undefined symbol: (?P<library>\w+)",
            r"(?P<library>GLIBC(XX)?_[\d.]+)'? not found",
            r"DLL load failed|Library not loaded: (?P<library>\S+)",
        ),
        is_said_before=True,
        words="a library of the system does not fit the packages: {library}",
        fix="{python} -m pip install --force-reinstall torch torchvision, both from one index",
        text="ImportError: libcudart.so.12: cannot open shared object file: No such file or "
        "directory",
        source="glibc; asked about: same environment",
    ),
    Cause(
        name="name-missing-in-module",
        any_of=(r"ImportError: cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'",),
        words="`{module}` has no `{name}`: another version than the code was written for, or a "
        "file of your own with the same name",
        fix="{python} -m pip show {module}; and look for a {module}.py beside the code",
        text="ImportError: cannot import name 'AdamW' from 'transformers'",
        source="CPython",
    ),
    Cause(
        name="driver-too-old",
        any_of=(
            r"NVIDIA driver on your system is too old \(found version (?P<version>\d+)\)",
            r"CUDA driver version is insufficient for CUDA runtime version",
        ),
        is_said_before=True,
        words="the NVIDIA driver is older than this torch needs",
        fix="a torch for an older CUDA: `pip install torch --index-url "
        "https://download.pytorch.org/whl/cu118`; or a new driver; `nvidia-smi` shows both",
        text="RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        source="torch/csrc/cuda/Module.cpp; asked about: CUDA not available (driver)",
    ),
    Cause(
        name="gpu-ids-wrong",
        any_of=(r"CUDA error: invalid device ordinal", r"Invalid device id|invalid device ordinal"),
        words="a GPU with that number is not there: CUDA_VISIBLE_DEVICES shows fewer of them",
        fix="nvidia-smi -L; then name those: `--gpus 0,1`; and `unset CUDA_VISIBLE_DEVICES`",
        text="RuntimeError: CUDA error: invalid device ordinal",
        source="CUDA runtime; asked about: GPU ids right?",
    ),
    Cause(
        name="cuda-unavailable",
        any_of=(
            r"Torch not compiled with CUDA enabled",
            r"Found no NVIDIA driver on your system",
            r"No CUDA GPUs are available",
            r"CUDA driver initialization failed",
            r"Attempting to deserialize object on a CUDA device but torch\.cuda\.is_available\(\) "
            r"is False",
        ),
        words="torch sees no CUDA: a build for the CPU, no driver, or CUDA_VISIBLE_DEVICES is "
        "empty",
        fix="phalanx check; nvidia-smi; `unset CUDA_VISIBLE_DEVICES`; `{python} -c 'import torch; "
        "print(torch.version.cuda)'` says None for a build without",
        text="AssertionError: Torch not compiled with CUDA enabled",
        source="torch/cuda/__init__.py; asked about: CUDA not available",
    ),
    Cause(
        name="gpu-too-new-or-old",
        any_of=(r"no kernel image is available for execution on the device",),
        words="this torch has no code for this GPU",
        fix="a torch whose `torch.cuda.get_arch_list()` has it; `phalanx check` names both",
        text="RuntimeError: CUDA error: no kernel image is available for execution on the device",
        source="CUDA runtime",
    ),
    Cause(
        name="bf16-unsupported",
        any_of=(
            r"(?i)(your setup doesn't support|(current )?(device|gpu|hardware) does not support|"
            r"not supported on this).{0,20}(bf16|bfloat16)",
            r"(?i)(bf16|bfloat16).{0,60}(only supported on|not supported|require[sd]? .*ampere|"
            r"compute capability)",
        ),
        words="this GPU does not compute in bf16: it is older than Ampere (compute capability 8.0)",
        fix="{again} precision=fp16",
        script_fix="{again} with --fp16 instead of --bf16, or `phalanx launch --mixed-precision "
        "fp16 ...`",
        text="ValueError: Your setup doesn't support bf16/gpu. You need to assign use_cpu if you "
        "want to train the model on CPU.",
        source="transformers/training_args.py; asked about: no bf16 on this GPU",
    ),
    Cause(
        name="offline",
        any_of=(
            r"Temporary failure in name resolution|Name or service not known",
            r"couldn't connect to '?https?://huggingface\.co",
            r"(MaxRetryError|NewConnectionError|ConnectTimeout|LocalEntryNotFoundError)",
            r"outgoing traffic has been disabled",
        ),
        words="something is to be fetched from the internet, and there is no way there",
        fix="fetch it where there is one, name its folder, and say so: `HF_HUB_OFFLINE=1 {again}`",
        text="OSError: We couldn't connect to 'https://huggingface.co' to load the files, and "
        "couldn't find them in the cached files.",
        source="huggingface_hub, requests",
    ),
    Cause(
        name="access-refused",
        any_of=(
            r"401 Client Error|403 Client Error|GatedRepoError",
            r"Access to model \S+ is restricted",
        ),
        words="the hub refuses the download: the model must be asked for, or a token is missing",
        fix="ask for it on its page, then `hf auth login`, then `{again}`",
        text="huggingface_hub.errors.GatedRepoError: 401 Client Error. Access to model "
        "meta-llama/Llama-3.1-8B is restricted.",
        source="huggingface_hub/errors.py",
    ),
    Cause(
        name="no-compiler",
        any_of=(
            r"Failed to find C compiler|InvalidCxxCompiler|No working C\+\+ compiler found",
            r"fatal error: Python\.h: No such file",
            r"TritonMissing|Cannot find a working triton installation",
        ),
        words="torch.compile has no compiler here",
        fix="apt install build-essential python3-dev; until then {again} compile=off",
        script_fix="apt install build-essential python3-dev; until then TORCHDYNAMO_DISABLE=1 "
        "{again}",
        text="RuntimeError: Failed to find C compiler. Please specify via CC environment variable.",
        source="triton/runtime/build.py; torch/_inductor",
    ),
    Cause(
        name="compile-error",
        any_of=(
            r"torch\._dynamo\.exc\.\w+|BackendCompilerFailed|InductorError|"
            r"torch\._inductor\.exc\.\w+",
        ),
        grade="symptom",
        words="torch.compile could not make code of the model",
        fix="{again} compile=off",
        script_fix="TORCHDYNAMO_DISABLE=1 {again}",
        text="torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:",
        source="torch/_dynamo/exc.py",
    ),
    Cause(
        name="illegal-instruction",
        exit_codes=(-4,),
        words="an instruction that this CPU does not have: a package was built for a newer one",
        fix="phalanx check tries each precision; reinstall what was built elsewhere",
        text="",
        source="SIGILL",
    ),
)
