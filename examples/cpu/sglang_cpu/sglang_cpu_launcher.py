"""`sglang-cpu FLAGS…`: start SGLang's server as if the processor had Intel AMX.

Without AMX, SGLang selects attention (`torch_native`) that cannot verify draft tokens. With AMX it
selects `intel_amx`, and `sgl_kernel.attention` provides its two operations in plain torch. AMX is
reported only while SGLang resolves its arguments; everything else runs as without AMX.
"""  # noqa: INP001  a script, not a package

from __future__ import annotations

import os
import sys

from sglang.launch_server import run_server
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import override_platform
from sglang.srt.server_args import prepare_server_args
from sglang.srt.utils import kill_process_tree


def main() -> None:
    """Serve until stopped."""
    load_plugins()
    arguments = prepare_server_args(sys.argv[1:])
    with override_platform(has_amx=True):
        arguments.resolve_once()
    try:
        run_server(arguments)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
