"""`headstart bench`: how fast this machine trains and answers."""

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
    """Time a step of pretraining and of fine-tuning, answers to short and long texts, and the first answer."""
    runtime = OPTIONS.settings(flags, path=config).runtime
    from headstart.recipes.bench import run_bench

    console = Console(quiet=quiet)
    found = run_bench(preset or "classic", {"runtime": runtime.model_dump()}, console)
    if as_json:
        console.result(json.dumps(found.as_dict(), indent=1, ensure_ascii=False))
        return
    rows = []
    for figure in found.figures:
        rates = (figure.tokens_per_second, figure.texts_per_second)
        shown = [f"{rate:,.0f}" if rate else "" for rate in rates]
        rows.append((figure.what, f"{figure.seconds:.3f}", *shown, f"{100 * figure.mfu:.0f} %" if figure.mfu else ""))
    console.table(["what", "seconds", "tokens/s", "texts/s", "MFU"], rows)
    where = found.environment["gpu"] or f"{found.environment['threads']} CPU threads"
    memory = f"; peak memory {found.peak_mib:,.0f} MiB" if found.peak_mib else ""
    console.prose(
        f"{found.preset}, {found.parameters:,} parameters; MFU is the share of {found.matmul_gflops:,.0f} GFLOP/s, "
        f"a large product on {where}{memory}"
    )
