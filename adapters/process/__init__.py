"""The life of an engine process: find its program, start it, watch it, end it."""

from harness.adapters.process.containers import version_found
from harness.adapters.process.endpoint import StartedEndpoint, running_endpoint
from harness.adapters.process.environments import (
    check_version,
    environment_folder,
    environments_folder,
    install,
    installed_environments,
    package_of,
)
from harness.adapters.process.programs import (
    MissingProgramError,
    env_for_report,
    installed_version,
    program_words,
)
from harness.adapters.process.server import Server, ServerStart, running_server
from harness.adapters.process.shown_texts import (
    hidden,
    hide_in_file,
    secret_values,
    shown_words,
)

__all__ = [
    "MissingProgramError",
    "Server",
    "ServerStart",
    "StartedEndpoint",
    "check_version",
    "env_for_report",
    "environment_folder",
    "environments_folder",
    "hidden",
    "hide_in_file",
    "install",
    "installed_environments",
    "installed_version",
    "package_of",
    "program_words",
    "running_endpoint",
    "running_server",
    "secret_values",
    "shown_words",
    "version_found",
]
