"""What a message takes on the disk, against the same messages in the bare table."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import Bar, Row, Run
from bench.bare import Bare, rows
from bench.corpus import messages
from bench.ours import Inside
from bench.speed.rows import named

GROUP = "bytes per message, 100 sessions by turns"
_SESSIONS = 100
_BAR = Bar(1.25)


def measure(run: Run, size: int) -> Sequence[Row]:
    """Fill both files and look at their length; once, for it does not vary."""
    run.progress(f"size, {size} bytes")
    each = 30 if run.quick else 200
    with TemporaryDirectory(dir=run.memory) as folder:
        bare_path, our_path = Path(folder) / "bare", Path(folder) / "ours"
        with closing(Bare(bare_path, rows(size, each * _SESSIONS, sessions=_SESSIONS))) as bare:
            bare.fill()
        with closing(Inside(our_path, sessions=_SESSIONS)) as inside:
            inside.append_by_turns(messages(size, each))
        taken = {p: p.stat().st_size / (each * _SESSIONS) for p in (bare_path, our_path)}
    return [
        Row(
            group=GROUP,
            name=named("bytes per message, bare table", size),
            value=taken[bare_path],
            unit="bytes",
        ),
        Row(
            group=GROUP,
            name=named("bytes per message, our file", size),
            value=taken[our_path] / taken[bare_path],
            unit="× bare",
            bar=_BAR,
        ),
    ]
