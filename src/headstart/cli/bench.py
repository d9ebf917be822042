"""`headstart bench`: time training and prediction on this machine."""

import json

from headstart.cli.console import Console
from headstart.cli.options import RUNTIME_OPTIONS, AsJson, ConfigFile, Flags, InferenceSettings, Options, Preset, Quiet

OPTIONS = Options(InferenceSettings, names=RUNTIME_OPTIONS)


@OPTIONS.on
def bench(
    *,
    preset: Preset = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    quiet: Quiet = False,
    flags: Flags | None = None,
) -> None:
    """Time steps of pretraining and fine-tuning, predictions on short and long texts, and the first prediction."""
    runtime = OPTIONS.settings(flags, path=config).runtime
    from headstart.recipes.bench import run_bench

    console = Console(quiet=quiet)
    result = run_bench(preset or "classic", {"runtime": runtime.model_dump()}, console)
    if as_json:
        console.result(json.dumps(result.as_dict(), indent=1, ensure_ascii=False))
        return
    rows = []
    for figure in result.figures:
        rates = (figure.tokens_per_second, figure.texts_per_second)
        formatted = [f"{rate:,.0f}" if rate else "" for rate in rates]
        rows.append(
            (figure.what, f"{figure.seconds:.3f}", *formatted, f"{100 * figure.mfu:.0f} %" if figure.mfu else "")
        )
    console.table(["operation", "seconds", "tokens/s", "texts/s", "MFU"], rows)
    device = result.environment["gpu"] or f"{result.environment['threads']} CPU threads"
    memory = f"; peak memory {result.peak_mib:,.0f} MiB" if result.peak_mib else ""
    console.prose(
        f"{result.preset}, {result.parameters:,} parameters; MFU is relative to {result.matmul_gflops:,.0f} GFLOP/s, "
        f"measured for a large matrix product on {device}{memory}"
    )
