"""The life of an engine process: find its program, start it, watch it, end it."""

from harness.adapters.process.containers import (
    PASSING_FOLDER,
    Container,
    container_of,
    image_version,
    in_image,
)
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
    engine_env,
    installed_version,
    program_words,
    told_env,
)
from harness.adapters.process.server import Server, ServerStart, running_server

__all__ = [
    "PASSING_FOLDER",
    "Container",
    "MissingProgramError",
    "Server",
    "ServerStart",
    "check_version",
    "container_of",
    "engine_env",
    "environment_folder",
    "environments_folder",
    "image_version",
    "in_image",
    "install",
    "installed_environments",
    "installed_version",
    "package_of",
    "program_words",
    "running_server",
    "told_env",
]
