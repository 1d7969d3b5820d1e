"""What labs of network namespaces leave behind."""

import subprocess

from lab import access, state


def left_of(name):
    """What there still is of a lab on this machine."""
    spaces = subprocess.run([access.tool("ip"), "netns", "list"], capture_output=True, text=True, check=True).stdout
    found = [line.split()[0] for line in spaces.splitlines() if line.startswith(f"sparkdl.{name}.")]
    return found + [name for known in state.every() if known.name == name]
