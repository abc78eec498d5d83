"""Seconds that disaggregation adds to the time to first token, over a shaped link between two engines.

    python -m benchmarks.bench_ttft --rates 400mbit --prompts 1024 --connectors nixl pdkv --codecs split --repeats 1

One run measures every contender: one engine alone (`colocated`), vLLM's NixlConnector (P first, then D with P's
answer) and this project's connector (both at once), once with each codec. The figure is D's first token minus P's
dispatch minus P's own prefill of the same prompt, measured just before on the same engine. Contenders that are not
being measured are stopped (SIGSTOP). With `--guards` this project's connector is compared with itself: as it is, and
without checksums and leases. Needs root and iproute2; exits with 2 where a link cannot be made.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks import contenders, guards, machine, netns, report
from benchmarks.contenders import Contender, Entrant, Sample, Workload
from pdkv_connector.cli.models import ensure_model

RESULTS = Path(__file__).resolve().parent / "results"
EXIT_CANNOT = 2


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Command line; every list can be cut short for a quick look."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rates", nargs="+", default=["100mbit", "400mbit", netns.UNSHAPED], help="tc rates, or unshaped"
    )
    parser.add_argument("--prompts", nargs="+", type=int, default=[1024, 4096, 7680], help="prompt lengths in tokens")
    parser.add_argument("--connectors", nargs="+", default=contenders.CONNECTORS, choices=contenders.CONNECTORS)
    parser.add_argument(
        "--codecs",
        nargs="+",
        choices=contenders.CODECS,
        help="of pdkv, an entrant each; default raw split auto, with --guards auto",
    )
    parser.add_argument("--guards", action="store_true", help="pdkv as it is and without checksums and leases alone")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--chunk", type=int, default=1024, help="max_num_batched_tokens")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument(
        "--extra", type=json.loads, default={}, help="JSON object of settings for this project's connector"
    )
    parser.add_argument(
        "--out", type=Path, help="file to append to, default ttft.jsonl or ttft_guards.jsonl; the picture lies beside"
    )
    parser.add_argument("--logs", type=Path, default=None, help="folder for engine logs and timelines")
    args = parser.parse_args(argv)
    args.codecs = args.codecs or (["auto"] if args.guards else ["raw", "split", "auto"])
    args.out = args.out or RESULTS / ("ttft_guards.jsonl" if args.guards else "ttft.jsonl")
    return args


def chosen(args: argparse.Namespace) -> list[Entrant]:
    """Who takes part."""
    if args.guards:
        return contenders.guard_entrants(args.codecs)
    return contenders.entrants(args.connectors, args.codecs)


def measure_all(args: argparse.Namespace, started: list[Contender], link: netns.ShapedLink) -> Iterator[Sample]:
    """Every case, repetitions outermost within a rate, so that a drift of the machine meets all contenders alike."""
    for rate in args.rates:
        link.set_rate(rate)
        for repeat in range(args.repeats):
            # Each repetition starts with another contender: none is always the first after the others.
            for contender in started[repeat % len(started) :] + started[: repeat % len(started)]:
                contender.resume()
                for num_tokens in args.prompts:
                    sample = contender.measure(rate, num_tokens, repeat)
                    print(json.dumps(sample.as_row()), file=sys.stderr, flush=True)
                    yield sample
                contender.pause()


def start(args: argparse.Namespace, link: netns.ShapedLink, folder: Path, stack: ExitStack) -> list[Contender]:
    """Start the contenders one after the other and freeze each when it is ready."""
    workload = Workload(ensure_model(args.model), args.dtype, args.chunk, args.max_model_len, args.extra)
    started = []
    for entrant in chosen(args):
        contender = Contender(entrant, workload, link, folder)
        stack.callback(contender.stop)
        contender.pause()
        started.append(contender)
    return started


def run(args: argparse.Namespace) -> list[Sample]:
    """Build the link, start the engines, measure; everything made is removed again."""
    with ExitStack() as stack:
        folder = args.logs or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pdkv-ttft-")))
        folder.mkdir(parents=True, exist_ok=True)
        link = stack.enter_context(netns.ShapedLink())
        return list(measure_all(args, start(args, link, folder, stack), link))


def main() -> int:
    """Run, append the result, draw, print the table."""
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    described = machine.describe()
    try:
        samples = run(args)
    except netns.CannotShape as error:
        print(f"bench_ttft: {error}", file=sys.stderr)
        return EXIT_CANNOT
    report.append_run(args.out, described, report.settings(args), samples)
    title = f"{args.model} {args.dtype}, {described['cpu']}, median of {args.repeats}, commit {described['commit'][:7]}"
    report.draw(args.out.with_suffix(".png"), samples, title)
    print(report.markdown_table(samples))
    if args.guards:
        print(guards.markdown_table(samples))
    return 0


if __name__ == "__main__":
    sys.exit(main())
